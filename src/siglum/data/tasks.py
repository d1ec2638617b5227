"""The eight kinds of query and item, in the order of the paper's tables, and two more that shops ask."""

from __future__ import annotations

TASKS = ("t2i", "i2t", "t2t", "i2i", "t2it", "it2i", "it2t", "it2it")
SHOP_TASKS = ("i2it", "name2it")
"""A photograph and a name that ask for products, which are photographs with names."""
SIDES = {"t": "t", "i": "i", "it": "(i,t)", "name": "name"}
"""What a query or an item is made of, as tables write it."""
TASK_LABELS = {task: "→".join(SIDES[side] for side in task.split("2")) for task in (*TASKS, *SHOP_TASKS)}
