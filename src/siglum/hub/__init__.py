"""Retrievers on the Hugging Face hub: fetched, published, and described by a model card."""
