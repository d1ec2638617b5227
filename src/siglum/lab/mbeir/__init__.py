"""M-BEIR: its files, the bench of its nine tasks, and the numbers published for them."""
