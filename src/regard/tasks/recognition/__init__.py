"""Speech recognition with CTC: Morse code, and own recordings with a manifest."""
