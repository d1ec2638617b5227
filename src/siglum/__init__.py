"""Siglum: multimodal generative retrieval."""
