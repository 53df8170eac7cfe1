"""Streaming recognition: audio in pieces to text."""
