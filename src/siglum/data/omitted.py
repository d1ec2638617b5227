"""What was left out of a run and why, so that nothing is passed over in silence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Part = Literal["row", "image", "text"]
NAMED = 5
"""Most rows a summary names; the record names all."""


@dataclass(frozen=True, slots=True)
class Omission:
    """A row that was left out, or one part of a row that stayed."""

    kind: Literal["item", "query"]
    id: str
    part: Part
    """What was left out: the whole row, or the part of it that gave the encoder nothing."""
    why: str
    """A sentence that says what is wrong."""


def in_words(omitted: Iterable[Omission]) -> list[str]:
    """Return lines that count what was left out and name the first rows, each with its reason.

    >>> in_words([Omission("item", "a", "row", "the picture a.jpg does not exist.")])
    ['1 row was skipped:', '  the picture a.jpg does not exist.']
    """
    told = list(omitted)
    lines: list[str] = []
    for whole, one, more in (
        (True, "1 row was skipped", "{:,} rows were skipped"),
        (False, "1 row stayed without one of its parts", "{:,} rows stayed without one of their parts"),
    ):
        some = {(entry.kind, entry.id): entry.why for entry in told if (entry.part == "row") is whole}
        if some:
            head = one if len(some) == 1 else more.format(len(some))
            lines += name_some(head, {name: why for (_, name), why in some.items()})
    return lines


def name_some(head: str, reasons: dict[str, str]) -> list[str]:
    """Return a head line, and below it the first few names with their reasons."""
    named = [f"  {why}" if name in why else f"  {name}: {why}" for name, why in list(reasons.items())[:NAMED]]
    left = len(reasons) - len(named)
    return [f"{head}:", *named, *([f"  and {left:,} more (--json names all)"] if left else [])]
