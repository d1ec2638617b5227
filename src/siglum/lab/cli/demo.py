"""`siglum demo`: the whole pipeline on the drawn world, GENIUS beside PRO."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from siglum.console.commands import WritingVerb, say
from siglum.device import check_device
from siglum.terminal import ConsoleProgress


@dataclass(kw_only=True)
class Command(WritingVerb):
    """Draw a world of scenes, train GENIUS and PRO on it, and see which of them keeps its targets in the beam.

    Writes OUT (the PRO run), OUT/baselines/genius, OUT/6-report/report.json and report.html. An earlier demo of the
    same scale and seed is made anew; any other run in OUT is refused unless --overwrite is given.

    Examples:
      siglum demo
      siglum demo --scale tiny --out runs/tiny --json
    """

    LOCKS = "out"
    out: Path = Path("runs/demo")
    """The run folder."""
    scale: str = "demo"
    """tiny (under a minute), demo (minutes) or small."""
    seed: int = 0
    """Seed of the world and of training."""
    resume: bool = False
    """Keep finished stages and continue a killed one."""
    overwrite: bool = False
    """Remove another run, or a demo of another scale or seed, that OUT holds."""


def run(command: Command) -> dict[str, Any]:
    """Run the demo and show what came of it."""
    from siglum.console.tables import results_table
    from siglum.lab.demo import run_demo
    from siglum.run.folder import RunFolder

    begun = time.perf_counter()
    report = run_demo(
        command.out,
        scale=command.scale,
        seed=command.seed,
        device=check_device(command.device),
        resume=command.resume,
        overwrite=command.overwrite,
        say=say,
        reporter=ConsoleProgress(terminal=False),
    )
    if not command.json:
        results_table(
            report["tasks"],
            ["dense", "scan", "geometry", "genius", "pro"],
            "Own pools: Success@1/5/10 in per cent (M-BEIR says Recall@k)",
        )
        results_table(report["union"], ["dense", "scan", "geometry", "genius", "pro"], "\nUnion pool of all tasks")
        _survival(report)
        gap = report["gap"]
        won, closed = f"{gap['tasks_won']} of {gap['tasks']}", f"{100 * gap['closed']:.0f} %"
        say(f"\nPRO beats GENIUS on {won} tasks and closes {closed} of its gap to dense search.")
        say(f"Report: {RunFolder(command.out).report / 'report.html'}   ({time.perf_counter() - begun:.0f} s)")
        say(f"Search it in a browser: siglum serve {command.out}")
    return report


def _survival(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    names = {"genius": "GENIUS", "pro_without_pd": "PRO, PD off", "pro": "PRO"}
    levels, beam = len(report["survival"]["pro"]), report["settings"]["diagnostic_beam"]
    for title, key, first in (
        (f"Target tokens among the best {beam} of their level under the quantised oracle", "survival", 1),
        (f"Targets still in the real beam of {report['settings']['beam']} after each level", "beam_survival", 0),
    ):
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("level")
        for level in range(levels):
            table.add_column(str(level + 1), justify="right")
        for system, label in names.items():
            if system in report[key]:
                table.add_row(label, *[f"{100 * share:.0f}" for share in report[key][system][1 - first :]])
        console = Console(width=100, highlight=False)
        console.print(f"\n{title}, in per cent", style="italic")
        console.print(table)
