"""The service: a run behind HTTP, and the page that people search it with (`siglum serve`)."""
