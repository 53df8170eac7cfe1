"""Steppers: models advanced one token at a time."""
