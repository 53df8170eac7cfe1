"""Speech recognition with CTC: Morse code, and your own recordings with a manifest."""
