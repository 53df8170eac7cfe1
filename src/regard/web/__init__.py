"""Serving: one worker per model, an HTTP API, and the gate in front of both."""
