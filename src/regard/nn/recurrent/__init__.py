"""Recurrent layers, with and without attention, and recurrent decoders."""
