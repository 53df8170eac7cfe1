"""Families of recurrent cells: forward passes, back-propagation through time, and gates."""
