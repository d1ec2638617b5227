"""The benchmark on a product catalogue."""
