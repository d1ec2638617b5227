"""Benchmarks that train and measure many systems, resumable by system and seed."""
