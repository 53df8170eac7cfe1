"""Checks of every look, edit and attribution on one model, against brute force."""
