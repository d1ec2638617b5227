"""`siglum info`: what a run folder holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

STAGES = ("1-vectors", "2-tokenizer", "3-decoder", "4-index", "5-runs", "6-report")


@dataclass(kw_only=True)
class Command:
    """Show what a run folder holds: stages, configuration, curves of training.

    Example:
      siglum info runs/demo
    """

    folder: tyro.conf.Positional[Path]
    """The run folder."""
    seed: int = 0
    """Accepted for uniformity; nothing is drawn at random."""
    device: str = "cpu"
    """Accepted for uniformity; nothing is computed."""
    json: bool = False
    """Print one JSON document on stdout."""


def run(command: Command) -> dict[str, Any]:
    """Read the records and show them."""
    from siglum.config import as_dict, diff
    from siglum.files import STAGE_FILE, read_json
    from siglum.log import read_log
    from siglum.pipeline import RunFolder
    from siglum.recipes import recipe

    folder = RunFolder(command.folder)
    config = folder.config()
    stages: dict[str, Any] = {}
    for name in STAGES:
        path = folder.root / name
        record = read_json(path / STAGE_FILE) if (path / STAGE_FILE).exists() else {}
        size = sum(f.stat().st_size for f in path.rglob("*") if f.is_file()) if path.exists() else 0
        state = (
            "finished"
            if record
            else "there"
            if path.exists() and name[0] in "56"
            else "unfinished"
            if path.exists()
            else "missing"
        )
        stages[name] = {"state": state, "bytes": size, "fingerprint": record.get("fingerprint", "")}
    curves: dict[str, dict[str, list[float]]] = {}
    levels: dict[str, dict[str, list[float]]] = {}
    for record in read_log(folder.root / "log.jsonl"):
        for key, value in record.items():
            if key not in ("stage", "step", "time") and isinstance(value, int | float):
                curves.setdefault(record["stage"], {}).setdefault(key, []).append(value)
            elif isinstance(value, list):
                levels.setdefault(record["stage"], {})[key] = value
    changes = (
        {k: list(v) for k, v in diff(recipe(config.recipe, config.scale, config.seed), config).items()}
        if config.scale != "auto"
        else {}
    )
    result = {
        "run": str(folder.root),
        "config": as_dict(config),
        "changed": changes,
        "stages": stages,
        "curves": curves,
        "levels": levels,
    }
    if not command.json:
        _show(result)
    return result


def _show(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from siglum.cli.tables import spark

    console = Console(highlight=False)
    config = result["config"]
    console.print(
        f"[bold]{result['run']}[/]  recipe {config['recipe']}, scale {config['scale']}, seed {config['seed']}"
    )
    vocab, search = " ".join(map(str, config["tokenizer"]["vocab"])), config["search"]
    console.print(f"codes {vocab}   beam {search['beam']}   omega {search['omega']}")
    for name, (was, now) in result["changed"].items():
        console.print(f"  {name} = {now} (recipe: {was})")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("stage", "state", "size", "fingerprint"):
        table.add_column(column)
    for name, stage in result["stages"].items():
        table.add_row(name, stage["state"], f"{stage['bytes'] / 1e6:,.1f} MB", stage["fingerprint"])
    console.print(table)
    for stage, curves in result["curves"].items():
        console.print(f"[bold]{stage}[/]")
        for name, values in curves.items():
            if name != "select":
                console.print(f"  {name:<16} {spark(values)}  {values[0]:.4g} → {values[-1]:.4g}")
        for name, values in result["levels"].get(stage, {}).items():
            console.print(f"  {name:<16} {' '.join(f'{value:.2f}' for value in values)}", soft_wrap=True)
