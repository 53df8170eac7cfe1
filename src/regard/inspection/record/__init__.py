"""Recording of attention, gates and hidden states while a model runs."""
