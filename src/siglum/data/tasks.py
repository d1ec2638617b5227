"""The eight kinds of query and item, in the order of the paper's tables."""

from __future__ import annotations

TASKS = ("t2i", "i2t", "t2t", "i2i", "t2it", "it2i", "it2t", "it2it")
TASK_LABELS = {
    "t2i": "t→i",
    "i2t": "i→t",
    "t2t": "t→t",
    "i2i": "i→i",
    "t2it": "t→(i,t)",
    "it2i": "(i,t)→i",
    "it2t": "(i,t)→t",
    "it2it": "(i,t)→(i,t)",
}
