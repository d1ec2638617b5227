"""Speed of search beside other libraries."""
