"""The drawn world."""
