"""From pairs of rounds to the ratio of two commits' speeds, its interval, and a table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

import numpy as np

from siglum.lab.speed.table import Row, page, shortened
from siglum.measure.significance import Bootstrap, interval

BAR = 0.98
"""A commit whose interval reaches this ratio counts as no slower."""
DRAWS = 10_000
"""Draws of the bootstrap over pairs."""
COLUMNS = ("mode", "dtype", "device", "pool", "batch")
SHOWN = (
    *("old_queries_per_s", "new_queries_per_s", "ratio", "ratio_low", "ratio_high", "no_slower"),
    *("cpu_ratio", "cpu_ratio_low", "cpu_ratio_high", "overlap_at_50"),
)


def ratio_of(old_P: Sequence[float], new_P: Sequence[float]) -> tuple[float, float, float]:
    """Return the geometric mean over pairs of old over new seconds, and its 95 % bootstrap interval over pairs.

    >>> ratio_of([2.0, 8.0], [1.0, 4.0])
    (2.0, 2.0, 2.0)
    """
    log_P = np.log(np.asarray(old_P) / np.asarray(new_P))
    found = interval(Bootstrap(range(len(log_P)), DRAWS).means(log_P[None])[:, 0])
    return math.exp(found["mean"]), math.exp(found["low"]), math.exp(found["high"])


def make_rows(parts: Iterable[dict[str, Any]], device: str) -> list[Row]:
    """Return one row a part."""
    return [shortened(_row(part, device)) for part in parts]


def _row(part: dict[str, Any], device: str) -> Row:
    queries = part["batch"] * part["calls"]
    rate = {side: median(queries / seconds for seconds in rounds) for side, rounds in part["seconds"].items()}
    ratio, low, high = ratio_of(part["seconds"]["old"], part["seconds"]["new"])
    cpu, cpu_low, cpu_high = ratio_of(part["cpu_seconds"]["old"], part["cpu_seconds"]["new"])
    return {
        **{name: part.get(name, device) for name in COLUMNS},
        "old_queries_per_s": rate["old"],
        "new_queries_per_s": rate["new"],
        "ratio": ratio,
        "ratio_low": low,
        "ratio_high": high,
        "no_slower": high >= BAR,
        "cpu_ratio": cpu,
        "cpu_ratio_low": cpu_low,
        "cpu_ratio_high": cpu_high,
        "overlap_at_50": part["overlap"],
        "checked": part["checked"],
        "pairs": len(part["seconds"]["old"]),
        "queries": queries * len(part["seconds"]["old"]),
    }


def make_notes(rows: list[Row]) -> list[str]:
    """Return what to know when reading the rows."""
    notes = [
        "ratio is the new side's speed over the old side's, the geometric mean over pairs of rounds; ratio_low and "
        f"ratio_high are its 95 % bootstrap interval over pairs, and no_slower says that it reaches {BAR}.",
        "cpu_ratio is the same of CPU time, all threads together: other work on the machine hardly moves it, but it "
        "does not tell how well threads are used.",
    ]
    few = [row for row in rows if row["pairs"] < 6]
    if few:
        notes.append(f"{few[0]['pairs']} pairs are too few for an interval to be trusted; give more by --rounds.")
    apart = [row for row in rows if row["overlap_at_50"] < 1]
    if apart:
        least = min(row["overlap_at_50"] for row in apart)
        notes.append(
            f"the two sides share {least:.3f} of the first 50 items at the least: they rank differently, so the ratio "
            "compares different work."
        )
    slower = [_label(row) for row in rows if not row["no_slower"]]
    notes.append(f"slower: {'; '.join(slower)}." if slower else f"no interval ends below {BAR}.")
    return notes


def _label(row: Row) -> str:
    return f"{row['mode']} {row['dtype']} over {row['pool']:,} items at batch {row['batch']}"


def markdown(document: dict[str, Any]) -> str:
    """Return the rows as a table, and the notes."""
    sides = f"New: {document['new']}. Old: {document['old']}."
    return page("Speed of search against an earlier commit", document, (*COLUMNS, *SHOWN), sides)
