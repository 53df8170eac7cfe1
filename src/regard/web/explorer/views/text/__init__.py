"""The text view: tokens, predictions, and every attention head, from one forward pass."""
