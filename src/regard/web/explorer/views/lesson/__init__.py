"""The lesson view: a guided walk on any text and model, and the numbers of one attention."""
