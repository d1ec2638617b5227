"""`siglum info`: what a run folder holds, and whether it is sound."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siglum.console.commands import OneRun, Verb
from siglum.types import SiglumError

if TYPE_CHECKING:
    from siglum.run.check import Checked
    from siglum.run.folder import RunFolder
    from siglum.run.states import StageState

Curves = dict[str, dict[str, list[float]]]


@dataclass(kw_only=True)
class Command(OneRun, Verb):
    """Show what a run folder holds: stages, configuration, curves of training; check that its files are sound.

    Examples:
      siglum info runs/demo
      siglum info runs/demo --check
    """

    check: bool = False
    """Read every file in full and compare it with what was written."""
    record: bool = False
    """With --check: add checks to stages made by earlier versions; accept config.json and its like as they are."""


def run(command: Command) -> dict[str, Any]:
    """Read the records and show them."""
    from siglum.run.folder import LOG_FILE, RunFolder
    from siglum.run.states import stage_states

    folder = RunFolder(command.folder)
    if command.record and not command.check:
        raise SiglumError("--record goes with --check, which finds what is to be recorded.")
    checked = _check(folder, command.record) if command.check else None
    config, changed = _settings(folder)
    stages = stage_states(folder)
    curves, levels, unreadable = _curves(folder.root / LOG_FILE)
    result: dict[str, Any] = {
        "run": str(folder.root),
        "config": config,
        "changed": changed,
        "stages": {name: _told(stage) for name, stage in stages.items()},
        **_facts(folder, stages, config),
        "curves": curves,
        "levels": levels,
        "unreadable_log_lines": unreadable,
    }
    if checked:
        result["check"] = asdict(checked)
    if not command.json:
        _show(result)
    return result


def _check(folder: RunFolder, record: bool) -> Checked:
    from siglum.run.check import check_run
    from siglum.run.lock import lock_run

    if record:
        with lock_run(folder.root, "siglum info --record"):
            found = check_run(folder.root, record=True)
    else:
        found = check_run(folder.root)
    found.refuse(folder.root)
    return found


def _settings(folder: RunFolder) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Return the run's settings, and where they depart from its recipe; a saved retriever has those of search alone."""
    from siglum.config import as_dict, diff
    from siglum.recipes import recipe
    from siglum.recommenders import usual_of

    config = folder.config()
    if folder.has_search_alone:
        return {"search": as_dict(config.search)}, {}
    if config.scale == "auto":
        return as_dict(config), {}
    usual = usual_of(config) or recipe(config.recipe, config.scale, config.seed)
    return as_dict(config), {k: list(v) for k, v in diff(usual, config).items()}


def _told(stage: StageState) -> dict[str, Any]:
    own = stage.record.get("fingerprint", "")
    return {
        "state": stage.state,
        "bytes": stage.bytes,
        "fingerprint": own,
        **({"why": stage.why} if stage.why else {}),
    }


def _facts(folder: RunFolder, stages: dict[str, StageState], config: dict[str, Any]) -> dict[str, Any]:
    """Return what the run is about: its items, its encoder, its code sizes; None for what is not there yet."""
    from siglum.run.folder import INDEX, TOKENIZER, VECTORS

    tokenizer, vectors = stages[TOKENIZER].record, stages[VECTORS].record
    made, planned = tokenizer.get("tokenizer"), config.get("tokenizer", {})
    vocab = (made if isinstance(made, dict) else planned).get("vocab")
    return {
        "items": {"encoded": _encoded(folder, bool(vectors)), "indexed": stages[INDEX].record.get("items")},
        "encoder": tokenizer.get("encoder", vectors.get("encoder")),
        "vocab": vocab if isinstance(vocab, list) else None,
    }


def _encoded(folder: RunFolder, finished: bool) -> int | None:
    from siglum.files import map_tensors

    try:
        offsets = map_tensors(folder.vectors / "items.safetensors").get("id_offsets") if finished else None
    except SiglumError:
        return None
    return None if offsets is None else max(0, len(offsets) - 1)


def _curves(path: Path) -> tuple[Curves, Curves, int]:
    """Return the log's numbers by stage and name, the last of its lists, and how many lines could not be read."""
    from siglum.log import read_log, unreadable_lines

    curves: Curves = {}
    levels: Curves = {}
    for record in read_log(path):
        for key, value in record.items():
            if key not in ("stage", "step", "time") and _is_number(value):
                curves.setdefault(record["stage"], {}).setdefault(key, []).append(value)
            elif isinstance(value, list) and all(map(_is_number, value)):
                levels.setdefault(record["stage"], {})[key] = value
    return curves, levels, unreadable_lines(path)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and -1e300 < value < 1e300  # no NaN, nothing infinite


def _show(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    config, search = result["config"], result["config"]["search"]
    about = (
        f"recipe {config['recipe']}, scale {config['scale']}, seed {config['seed']}"
        if "recipe" in config
        else "a saved retriever"
    )
    console.print(f"[bold]{escape(result['run'])}[/]  {about}", soft_wrap=True)
    vocab = " ".join(map(str, result["vocab"] or ["none yet"]))
    console.print(escape(f"codes {vocab}   beam {search['beam']}   omega {search['omega']}"), soft_wrap=True)
    counts = [f"{count:,} {how}" for how, count in result["items"].items() if isinstance(count, int)]
    console.print(
        escape(f"items {', '.join(counts) or 'none yet'}   encoder {result['encoder'] or 'none yet'}"), soft_wrap=True
    )
    for name, (was, now) in result["changed"].items():
        console.print(escape(f"  {name} = {now} (recipe: {was})"), soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("stage", "state", "size", "fingerprint"):
        table.add_column(column)
    for name, stage in result["stages"].items():
        table.add_row(name, stage["state"], f"{stage['bytes'] / 1e6:,.1f} MB", escape(stage["fingerprint"]))
    console.print(table)
    for name, stage in result["stages"].items():
        if "why" in stage:
            console.print(escape(f"{name} is {stage['state']}: {stage['why']}"), soft_wrap=True)
    _show_curves(console, result)
    if "check" in result:
        _show_check(console, result["check"])


def _show_curves(console: Any, result: dict[str, Any]) -> None:
    from rich.markup import escape

    from siglum.console.tables import spark

    for stage, curves in result["curves"].items():
        console.print(f"[bold]{escape(stage)}[/]")
        for name, values in curves.items():
            if name != "select":
                console.print(escape(f"  {name:<16} {spark(values)}  {values[0]:.4g} → {values[-1]:.4g}"))
        for name, values in result["levels"].get(stage, {}).items():
            console.print(escape(f"  {name:<16} {' '.join(f'{value:.2f}' for value in values)}"), soft_wrap=True)
    if count := result["unreadable_log_lines"]:
        console.print(f"log.jsonl: {count} unreadable line{'s'[: count > 1]} left out", soft_wrap=True)


def _show_check(console: Any, check: dict[str, Any]) -> None:
    from rich.markup import escape

    console.print(f"sound: {check['files']:,} files, {check['bytes']:,} bytes, all read", soft_wrap=True)
    if check["recorded"]:
        console.print(escape(f"checks recorded: {', '.join(check['recorded'])}"), soft_wrap=True)
    if check["unrecorded"]:
        names = ", ".join(check["unrecorded"])
        console.print(
            escape(f"made by an earlier version, without checks (--record adds them): {names}"), soft_wrap=True
        )
