"""How the stages of a run stand to each other: which are finished, and which were made from something that is gone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from siglum.config import DecoderConfig, FusionConfig, QueryConfig, TokenizerConfig, diff, from_dict
from siglum.files import STAGE_FILE, read_stage
from siglum.rootfiles import read_kept_json
from siglum.run.folder import CONFIG_FILE, DECODER, DENSE, INDEX, REPORT, RUNS, TOKENIZER, VECTORS, RunFolder
from siglum.run.generations import index_record
from siglum.run.results import SHOWN
from siglum.types import SiglumError

SETTINGS = {"fusion": FusionConfig, "tokenizer": TokenizerConfig, "query": QueryConfig, "decoder": DecoderConfig}
"""Settings that records of stages hold, by the name they have there and in the run's."""


@dataclass(slots=True)
class StageState:
    """One stage of a run."""

    state: str = "missing"
    """missing, unfinished, finished, stale (made from something else than what is there now), damaged, or, of runs and
    reports, which have no record: there."""
    why: str = ""
    """Why it is stale or damaged."""
    bytes: int = 0
    record: dict[str, Any] = field(default_factory=dict)


def stage_states(run: RunFolder) -> dict[str, StageState]:
    """Return the state of every stage by the name of its folder; a damaged one stops nothing."""
    records = {name: _recorded(run.root / name) for name in (VECTORS, TOKENIZER, DENSE, DECODER, INDEX)}
    for name, source, made_from, own in (
        (DENSE, VECTORS, "vectors", "fingerprint"),
        (TOKENIZER, VECTORS, "vectors", "fingerprint"),
        (DECODER, TOKENIZER, "tokenizer", "tokenizer_fingerprint"),
        (INDEX, TOKENIZER, "tokenizer", "tokenizer_fingerprint"),
    ):
        _compare(records[name], records[source], source, made_from, own)
        _compare_settings(records[name], run)
    newest = max(((_newest(run.root / name), name) for name in records), default=(0, ""))
    return records | {name: _measured(run.root / name, newest) for name in (RUNS, REPORT)}


def _recorded(folder: Path) -> StageState:
    found = StageState(bytes=sum(path.stat().st_size for path in _files(folder)))
    if not folder.exists():
        return found
    try:
        found.record = index_record(folder) if folder.name == INDEX else _record(folder)
        found.state = "finished" if found.record else "unfinished"
    except SiglumError as error:
        found.state, found.why = "damaged", str(error)
    return found


def _record(folder: Path) -> dict[str, Any]:
    return read_stage(folder) if (folder / STAGE_FILE).exists() else {}


def _compare(stage: StageState, source: StageState, name: str, made_from: str, own: str) -> None:
    """Call a finished stage stale if it was made from another `source`, or from one that is stale itself."""
    if stage.state != "finished" or not source.record:
        return
    used = stage.record["inputs"].get(made_from)
    if used == "none":  # a retriever saved elsewhere takes no vectors along
        return
    if used != source.record.get(own):
        stage.state, stage.why = "stale", f"made from another {name} than is there now"
    elif source.state == "stale":
        stage.state, stage.why = "stale", f"{name} is stale"


def _compare_settings(stage: StageState, run: RunFolder) -> None:
    """Call a finished stage stale if the run has other settings than those it was made with.

    A retriever that was saved has settings of its search alone.
    """
    if stage.state != "finished":
        return
    try:
        stored = read_kept_json(run.root, CONFIG_FILE) or {}
        for name, kind in SETTINGS.items():
            if isinstance(stage.record.get(name), dict) and name in stored:
                changed = diff(from_dict(kind, stage.record[name]), from_dict(kind, stored[name]))
                for field, (was, now) in changed.items():
                    stage.state, stage.why = "stale", f"made with {name}.{field} {was}, which is {now} now"
    except SiglumError:  # whoever opens the damaged one says so
        return


def _measured(folder: Path, newest: tuple[int, str]) -> StageState:
    """Call results stale if a stage was made after the oldest of them."""
    files = list(_files(folder))
    found = StageState("there" if folder.exists() else "missing", bytes=sum(path.stat().st_size for path in files))
    times = [path.stat().st_mtime_ns for path in files if path.name not in SHOWN]
    if times and min(times) < newest[0]:
        found.state, found.why = "stale", f"{newest[1]} was made later"
    return found


def _newest(folder: Path) -> int:
    """Return when a stage was last made or changed: its record, or the generation and the log of an index."""
    watched = (folder / STAGE_FILE, folder / "CURRENT", *folder.glob("log-*"))
    return max((path.stat().st_mtime_ns for path in watched if path.exists()), default=0)


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())
