"""Pages: everything that becomes HTML."""
