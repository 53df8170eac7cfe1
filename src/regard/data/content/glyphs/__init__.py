"""The glyphs task: letters and digits drawn with Pillow."""
