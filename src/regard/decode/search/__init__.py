"""Searches over a model's steps: greedy, beam, sampling, CTC."""
