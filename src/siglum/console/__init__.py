"""What every command shares: options to calls, errors to sentences, progress, tables."""
