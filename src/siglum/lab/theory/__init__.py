"""The survival theory as code, checked on instances."""
