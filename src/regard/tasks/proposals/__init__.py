"""Recipes proposed for the user's data: one file per kind of data, each with its stated rules."""
