"""The command line: one file a verb. Results go to stdout, all else to stderr."""
