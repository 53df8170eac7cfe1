"""Recipes proposed for own data: one file per kind of data, each with its stated rules."""
