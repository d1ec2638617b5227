"""Generating codes: the T5-shaped decoder from a query vector to code sequences."""
