"""Values nobody should give, and how to tell of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from faultlib.campaign import Base
from faultlib.told import Fault

Case = Callable[[Base, Random, Path], tuple[str, list[Fault]]]
ANYTHING: tuple[Any, ...] = (
    None, 0, 1, -1, 2.5, math.nan, True, "", "abc", "item3", b"item3", [], [None], [1, 2], ["item3"],
    ["item3", "item3"], ["item3", None], ("item3", "item4"), {"item3"}, {"a": 1}, {},
    object(), int, len, range(3), iter(["item3"]), [[]],
    ["nothing"], ["🙂"], ["\ud800"], [""], np.array(["item3"]), np.zeros(3), np.zeros(0), np.zeros((2, 3)), np.array(5),
    np.ones(5, bool), np.array([None, 1], object), Path("/nowhere"), Path("."), slice(3), 3j, "x" * 100_000, ...,
    Exception(),
)  # fmt: skip


def describe(value: Any) -> str:
    """Return a value in few words."""
    if isinstance(value, np.ndarray):
        return f"array{value.shape} {value.dtype}"
    if hasattr(value, "detach"):
        return f"tensor{tuple(value.shape)} {value.dtype}"
    if isinstance(value, list) and value and hasattr(value[0], "detach"):
        return f"[{', '.join(map(describe, value))}]"
    return ascii(value)[:80]


def words(name: str, given: dict[str, Any]) -> str:
    """Return a call in words."""
    return f"{name}({', '.join(f'{key}={describe(value)}' for key, value in given.items())})"
