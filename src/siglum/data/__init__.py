"""Collections to search: the carried world of drawn scenes and whatever is read from disk."""
