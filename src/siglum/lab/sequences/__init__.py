"""The benchmark on sequences of users."""
