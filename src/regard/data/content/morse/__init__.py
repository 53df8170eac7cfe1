"""The Morse task: synthesised keying as a radio receiver plays it."""
