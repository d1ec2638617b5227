"""The benchmark on captioned images."""
