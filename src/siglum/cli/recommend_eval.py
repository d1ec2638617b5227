"""`siglum recommend eval`: measure a recommender on held-out users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from siglum.console.commands import OneRun, WritingVerb, say


@dataclass(kw_only=True)
class Command(OneRun, WritingVerb):
    """Measure what a recommender says comes next, over the whole catalogue and matching the full id.

    R@k is the share of users whose next item is among the first k. All systems follow one policy on items a user has
    had: by default they may come again, and --unseen shows the table without them; the document has both. Writes
    6-report/recommend-SPLIT.json.

    Examples:
      siglum recommend eval runs/beauty
      siglum recommend eval runs/beauty --split val --users 2000 --json
    """

    split: str = "test"
    """val or test."""
    users: int = 0
    """How many users to ask, evenly spread; 0 asks all."""
    beam: int | None = None
    """Another beam width than the run's."""
    unseen: bool = False
    """Show the table without items that users have had."""


def run(command: Command) -> dict[str, Any]:
    """Evaluate and print the table."""
    from siglum.recommend.evaluation import evaluate

    found = evaluate(command.folder, **command.values("split", "users", "device", "beam"))
    if not command.json:
        _show(found, "unseen" if command.unseen else "")
    return {"run": str(command.folder), **found}


def _show(found: dict[str, Any], policy: str) -> None:
    from rich.console import Console

    from siglum.console.tables import plain_table
    from siglum.recommend.evaluation import table_rows

    table = plain_table("system", "R@5", "R@10", "NDCG@5", "NDCG@10", "shown %", "popularity")
    for row in table_rows(found["systems"], policy):
        table.add_row(*row)
    console, some = Console(highlight=False, width=100), next(iter(found["systems"].values()))
    console.print(table)
    say(f"{some['users']:,} users; for {some['cold']['users']:,} of them training never saw the item that came next")
    say("shown: share of all items among the first ten of anybody; popularity: above 1 leans to frequent items")
