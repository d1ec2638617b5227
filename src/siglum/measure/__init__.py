"""Measures of retrieval and the statistics that say whether a difference is one."""
