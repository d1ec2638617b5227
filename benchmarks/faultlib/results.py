"""What the campaign found: one line a trial while it runs, then a document and a table."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from faultlib.campaign import Trial
from faultlib.told import KINDS

COLUMNS = ("tracebacks", "silent errors", "losses", "phantoms", "hangs", "others")
COLUMN_OF = {"traceback": 0, "silent": 1, "loss": 2, "phantom": 3, "hang": 4, "crash": 4}
SHOWN = 40
"""Most distinct faults the table lists."""


class Journal:
    """Results on disk, a line each; what a kill leaves is read again."""

    def __init__(self, path: Path, header: dict[str, Any], resume: bool) -> None:
        """Begin a journal, or go on with one of the same header."""
        self.path, self.done = path, {}
        lines = list(_lines(path)) if resume else []
        if lines and lines[0] != header:
            raise SystemExit(f"{path} is of another campaign ({lines[0]}); start without --resume.")
        for line in lines[1:]:
            self.done[line["id"]] = line
        path.parent.mkdir(parents=True, exist_ok=True)
        # A torn last line is dropped by writing all whole ones anew.
        path.write_text("".join(json.dumps(line) + "\n" for line in [header, *self.done.values()]))
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND)

    def write(self, trial: Trial, result: dict[str, Any]) -> None:
        """Append one result."""
        line = {"id": trial.id, "section": trial.section, "case": trial.case, **result}
        self.done[trial.id] = line
        os.write(self.file, json.dumps(line).encode() + b"\n")


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            return


def group(section: str, case: str) -> str:
    """Return what a case is counted under.

    >>> group("damages", "bit:4-index/log-000001")
    '4-index/log-N'
    """
    if section == "damages":
        return re.sub(r"[0-9a-f]{16}|\d{3,}", "N", case.partition(":")[2])
    return case.partition(":")[2] if section == "disk" else case


def count(lines: list[dict[str, Any]]) -> dict[str, int]:
    """Return tries, and trials with each kind of fault."""
    found = Counter(kind for line in lines for kind in {one["kind"] for one in line["faults"]})
    return {"tries": len(lines), **{kind: found[kind] for kind in KINDS if found[kind]}}


def alike(what: str) -> str:
    """Return a fault without what belongs to its trial alone, so that alike ones are told once.

    >>> alike("add: TypeError: 'int' object is not iterable in index/ids.py, _listed (add(ids=3))")
    'add: TypeError in index/ids.py, _listed'
    """
    what = re.sub(r" \((?:[^()]|\([^()]*\))*\)$", "", what)
    if place := re.search(r" in (\S+\.py, \S+)", what):
        error = re.search(r"\w+(?:Error|Exception|File)\b", what)
        return f"{what.partition(':')[0]}: {error.group() if error else '?'} in {place.group(1)}"
    what = re.sub(r"/\S+", "PATH", what)
    return re.sub(r"\d+(\.\d+)?", "N", what)


def summarise(journal: Journal, seed: int, about: dict[str, Any]) -> dict[str, Any]:
    """Return everything as one document."""
    lines = list(journal.done.values())
    sections: dict[str, Any] = {}
    for section in dict.fromkeys(line["section"] for line in lines):
        own = [line for line in lines if line["section"] == section]
        groups = sorted({group(section, line["case"]) for line in own})
        by_group = {name: count([x for x in own if group(section, x["case"]) == name]) for name in groups}
        sections[section] = {**count(own), "seconds": round(sum(x["seconds"] for x in own), 1), "by": by_group}
    distinct: dict[str, dict[str, Any]] = {}
    for line in sorted(lines, key=lambda line: line["id"]):
        for one in line["faults"]:
            key = f"{one['kind']} {line['section']} {alike(one['what'])}"
            again = f"python benchmarks/faults.py --seed {seed} --only '{line['id']}'"
            distinct.setdefault(key, {**one, "section": line["section"], "times": 0, "again": again})["times"] += 1
    return {**about, "seed": seed, "sections": sections, "faults": sorted(distinct.values(), key=lambda x: -x["times"])}


def table(document: dict[str, Any]) -> str:
    """Return the document as Markdown."""
    rows = ["| section | tries | " + " | ".join(COLUMNS) + " |", "|---|" + "---|" * (len(COLUMNS) + 1)]
    for name, section in document["sections"].items():
        rows.append(_row(f"**{name}**", section))
        if name in ("kills", "shared", "fuzz", "disk"):
            rows += [_row(case, found) for case, found in section["by"].items()]
    faults = [
        f"- {one['kind']}, {one['times']} times: {one['what']}\n  `{one['again']}`"
        for one in document["faults"][:SHOWN]
    ]
    more = len(document["faults"]) - SHOWN
    told = "\n".join(faults) + (f"\n- and {more} more\n" if more > 0 else "\n") if faults else "None.\n"
    return f"# Faults\n\n{document['told']}\n\n" + "\n".join(rows) + f"\n\n## Distinct faults\n\n{told}"


def _row(name: str, found: dict[str, Any]) -> str:
    numbers = [0] * len(COLUMNS)
    for kind in KINDS:
        numbers[COLUMN_OF.get(kind, len(COLUMNS) - 1)] += found.get(kind, 0)
    return f"| {name} | {found['tries']:,} | " + " | ".join(map(str, numbers)) + " |"
