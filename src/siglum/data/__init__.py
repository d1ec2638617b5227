"""Collections to search: the drawn world of scenes and whatever is read from disk."""
