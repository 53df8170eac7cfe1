"""One recorded attention: its tensors, tokens and labels, and what can be computed from them."""
