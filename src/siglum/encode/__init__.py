"""Frozen encoders: pictures and texts in, feature rows out."""
