"""A run on disk: its folder, who may write it, whether it is sound, and updates of its index that last."""
