"""Fast decoding path on CPUs."""
