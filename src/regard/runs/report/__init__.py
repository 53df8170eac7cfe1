"""The report of a run, one HTML page, and its model card, both from the same facts."""
