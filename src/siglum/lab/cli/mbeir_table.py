"""What `siglum bench mbeir` writes: one JSON document, and the paper's table with its rows marked as quoted."""

from __future__ import annotations

from typing import Any

from siglum.lab.mbeir.layout import metric_ks
from siglum.lab.mbeir.paper_numbers import COLUMNS, MAIN_TABLE, MARK, quoted_rows
from siglum.lab.tables import Table
from siglum.measure.evaluate import Results
from siglum.types import Task

HERE = "measured here"


def build_report(facts: dict[str, Any], reading: dict[str, Any], tasks: list[Task], results: Results) -> dict[str, Any]:
    """Return the document: what was asked, every task's results, and the paper's table.

    `reading` is what is known of the data (asked, notes, skipped); `results` are system -> task -> measure -> value.
    """
    measured = {
        name: {task: [rows[task]["success@1"], rows[task]["success@5"]] for task in COLUMNS if task in rows}
        for name, rows in results.items()
    }
    # The paper has no numbers on the union pool, and those on task pools would mislead beside it.
    quoted = () if facts["pool"] == "union" else quoted_rows()
    return {
        "benchmark": "M-BEIR",
        **facts,
        "notes": reading["notes"],
        "skipped": reading["skipped"],
        "tasks": {
            task.name: {
                "queries": reading["asked"][task.name],
                "answerable": len(task.query_rows),
                "pool": len(task.pool_rows),
                "systems": {name: rows[task.name] for name, rows in results.items()},
            }
            for task in tasks
        },
        "paper_table": {
            "columns": list(COLUMNS),
            "measures": ["success@1", "success@5"],
            HERE: measured,
            MARK: {
                row.method: {task: [_share(cell.success(k)) for k in (1, 5)] for task, cell in row.cells.items()}
                for row in quoted
            },
        },
    }


def _share(value: float | None) -> float | None:
    return None if value is None else round(value / 100, 6)


def markdown(report: dict[str, Any]) -> str:
    """Return the report's tables: the paper's nine columns, then every task at M-BEIR's own cut-offs."""
    systems = [
        [name, source, *(_cell(rows[task]) if task in rows else "–" for task in COLUMNS)]
        for key, source in ((MARK, f"{MARK}, {MAIN_TABLE}"), (HERE, f"**{HERE}**"))
        for name, rows in report["paper_table"][key].items()
    ]
    head = ["Task", "Queries", "Pool", "System", "Success@k in per cent"]
    tasks = [
        [task, f"{row['queries']:,}", f"{row['pool']:,}", name, found]
        for task, row in report["tasks"].items()
        for name, values in row["systems"].items()
        for found in [", ".join(f"@{k} {100 * values[f'success@{k}']:.1f}" for k in metric_ks(task))]
    ]
    lines = [
        f"M-BEIR, {report['pool']} pool, encoder {report['encoder']}, scale {report['scale']}, seed {report['seed']}.",
        "Success@1 / Success@5 in per cent (the paper says Recall@k).",
        "The paper has no numbers on the union pool, so none are quoted."
        if report["pool"] == "union"
        else "Rows measured here are of one seed; GENIUS and PRO as quoted are means over five.",
        "",
        *Table("mbeir", "", ["System", "Source", *COLUMNS.values()], systems, align="ll" + "r" * len(COLUMNS)).grid(),
        "",
        "Every task, measured here:",
        "",
        *Table("tasks", "", head, tasks, align="lrrll").grid(),
    ]
    left = dict(report["notes"])
    if report["skipped"]:
        left["rows skipped, their pictures being unreadable"] = report["skipped"]
    if left:
        lines += ["", "Left out or not usable:", "", *(f"- {note}: {count:,}" for note, count in left.items())]
    return "\n".join(lines) + "\n"


def _cell(pair: list[float | None]) -> str:
    return " / ".join("–" if value is None else f"{100 * value:.1f}" for value in pair)
