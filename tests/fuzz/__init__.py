"""Fuzzing of every parser and HTTP route: `make fuzz`, docs/contributing/robustness.md."""
