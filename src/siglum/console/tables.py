"""Tables and curves for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from siglum.measure.evaluate import Results

if TYPE_CHECKING:
    from rich.table import Table

BARS = "▁▂▃▄▅▆▇█"


def plain_table(*columns: str, **options: Any) -> Table:
    """Return an empty table of these columns, without lines; all but the first are for numbers."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", **options)
    for place, name in enumerate(columns):
        table.add_column(name, justify="right" if place else "left", no_wrap=True)
    return table


def results_table(results: Results, systems: Sequence[str], title: str = "") -> None:
    """Print Success@1/5/10 of every task and system, in per cent."""
    from rich.console import Console

    from siglum.data.tasks import TASK_LABELS

    table = plain_table("Success@1/5/10", *systems, title=title or None, title_justify="left")
    for task, row in results.items():
        cells = [" ".join(f"{100 * row[s][f'success@{k}']:5.1f}" for k in (1, 5, 10)) for s in systems]
        table.add_row(TASK_LABELS.get(task, task or "all"), *cells)
    if len(results) > 1:
        mean = [
            " ".join(
                f"{100 * sum(r[s][f'success@{k}'] for r in results.values()) / len(results):5.1f}" for k in (1, 5, 10)
            )
            for s in systems
        ]
        table.add_row("mean", *mean, style="bold")
    # A table wider than a narrow terminal is better scrolled than wrapped.
    Console(width=max(100, 24 + 20 * len(systems))).print(table)


def spark(values: Sequence[float]) -> str:
    """Draw numbers as one line of bars, lowest to highest.

    >>> spark([1, 2, 3])
    '▁▅█'
    """
    low, high = min(values), max(values)
    if high == low:
        return BARS[0] * len(values)
    return "".join(BARS[round((value - low) / (high - low) * (len(BARS) - 1))] for value in values)
