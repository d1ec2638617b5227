"""Siglum inside other libraries: one module a library, which is imported only when it is used."""
