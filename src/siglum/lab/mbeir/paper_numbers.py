"""The paper's own numbers on M-BEIR, quoted so that they can stand beside what was measured.

"Closing the Indexing-Decoding Gap in Multimodal Generative Retrieval via Prefix Retention Optimization". Nothing in
this module was measured by Siglum. Numbers are in per cent and called Recall@k there; they are Success@k.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["dense", "generative"]
MARK = "quoted from the paper"
MAIN_TABLE = "tab:main"
"""Success@1 and Success@5 on task-specific pools: the table with all nine tasks."""

COLUMNS = {
    "mscoco_task0": "COCO t→i",
    "flickr30k_task0": "Flickr30k t→i",
    "webqa_task1": "WebQA t→t",
    "webqa_task2": "WebQA t→i,t",
    "mscoco_task3": "COCO i→t",
    "nights_task4": "NIGHTS i→i",
    "cirr_task7": "CIRR i,t→i",
    "oven_task8": "OVEN i,t→i,t",
    "infoseek_task6": "InfoSeek i,t→t",
}
"""The main table's nine columns, in its order, by the task's name."""

FULL_TABLES = {
    "tab:main_full": ("mscoco_task0", "flickr30k_task0", "mscoco_task3"),
    "tab:main_full_2": ("webqa_task1", "webqa_task2", "nights_task4"),
    "tab:main_full_3": ("cirr_task7", "oven_task8", "infoseek_task6"),
}
"""The appendix tables that add Success@10 and spreads, and the tasks of each."""


ROWS: tuple[tuple[str, Kind, str, str], ...] = (
    (
        "CLIP-SF",
        "dense",
        "55.2 80.7 88.4 | 79.1 95.0 97.5 | 58.3 84.2 90.0 | 47.6 76.3 83.9 | 65.7 87.5 92.6 |"
        " 8.8 31.6 52.8 | 5.9 43.2 56.5 | 49.4 69.2 75.3 | 14.5 28.8 37.0",
        "",
    ),
    (
        "BLIP-FF",
        "dense",
        "53.7 79.6 87.3 | 73.9 92.4 95.3 | 51.9 78.6 84.9 | 49.5 78.1 86.7 | 71.1 90.9 95.4 |"
        " 8.1 31.0 54.8 | 24.4 50.9 61.3 | 36.1 56.4 63.2 | 10.5 23.4 30.2",
        "",
    ),
    ("IRGen", "generative", "29.6 50.7 56.3 | 49.0 68.9 72.5", ""),
    ("GRACE", "generative", "16.7 39.5 50.3 | 37.4 59.5 66.2", ""),
    ("AVG", "generative", "31.3 58.0 - | 62.8 85.4 -", ""),
    ("SemCORE", "generative", "42.4 57.5 - | 69.0 83.0 -", ""),
    (
        "GENIUS",
        "generative",
        "37.1 66.4 76.7 | 56.8 81.3 85.5 | 19.4 29.9 32.2 | 29.1 51.3 58.2 | 47.9 77.3 86.0 |"
        " 1.2 11.6 30.7 | 5.5 19.0 28.1 | 26.4 36.0 43.9 | 6.1 10.2 12.9",
        ".33 .28 .22 | .42 .25 .18 | .32 .28 .25 | .36 .28 .24 | .35 .24 .17 |"
        " .14 .28 .35 | .24 .30 .28 | .38 .30 .26 | .22 .25 .22",
    ),
    (
        "PRO",
        "generative",
        "45.8 72.6 81.3 | 70.6 87.3 89.2 | 25.7 40.7 45.2 | 35.3 57.6 64.6 | 59.0 84.3 90.9 |"
        " 3.5 19.7 40.7 | 8.6 27.8 38.2 | 34.5 51.3 61.3 | 7.3 15.0 19.3",
        ".38 .30 .22 | .45 .22 .15 | .40 .35 .30 | .42 .32 .26 | .40 .25 .14 |"
        " .20 .35 .38 | .30 .36 .32 | .44 .35 .28 | .25 .30 .28",
    ),
)
"""Method (PRO is "Ours" there), kind, three numbers a task in the order of COLUMNS, and their spreads.

Tasks are divided by bars; `-` marks a missing number, and a task the method does not support is not there."""


@dataclass(frozen=True, slots=True)
class QuotedCell:
    """One method on one task, in per cent: Success@1, @5, @10 and their standard deviations over five seeds."""

    table: str
    """The table with all three cut-offs; the first two stand in the main table as well."""
    values: tuple[float | None, ...]
    spread: tuple[float | None, ...]

    def success(self, k: int) -> float | None:
        """Return Success@k, or None where the paper has none."""
        return dict(zip((1, 5, 10), self.values, strict=True)).get(k)


@dataclass(frozen=True, slots=True)
class Quoted:
    """One row of the main table; a task the method does not support is not in `cells`."""

    method: str
    kind: Kind
    cells: dict[str, QuotedCell]
    mark: str = MARK
    table: str = MAIN_TABLE


def quoted_rows() -> tuple[Quoted, ...]:
    """Return the rows of the paper's main table, with the appendix' third cut-off and spreads.

    >>> quoted_rows()[-1].cells["mscoco_task0"].values
    (45.8, 72.6, 81.3)
    """
    tables = {task: table for table, tasks in FULL_TABLES.items() for task in tasks}
    rows = []
    for method, kind, numbers, spreads in ROWS:
        values = [_numbers(part) for part in numbers.split("|")]
        spread = [_numbers(part) for part in spreads.split("|")] if spreads else [(None,) * 3] * len(values)
        named = zip(list(COLUMNS)[: len(values)], values, spread, strict=True)
        rows.append(Quoted(method, kind, {task: QuotedCell(tables[task], v, s) for task, v, s in named}))
    return tuple(rows)


def _numbers(part: str) -> tuple[float | None, ...]:
    return tuple(None if cell == "-" else float(cell) for cell in part.split())
