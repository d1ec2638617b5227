"""From measurements to rows, a table, and a fair reading: who wins where, and where curves cross."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import exp, floor, log, log10
from statistics import mean, median
from typing import Any

from siglum.lab.speed.bench import rate_of
from siglum.lab.speed.clock import crossings
from siglum.lab.tables import Table

Row = dict[str, Any]
COLUMNS = ("system", "mode", "dtype", "device", "pool", "batch")
SHOWN = ("queries_per_s", "ratio_to_hf", "p50_ms", "p95_ms", "overlap_at_50", "recall_at_50", "queries")
REFERENCE = "ratio_to_reference"
"""Stands beside these where the reference search was measured as well."""
DENSE = ("faiss-flat", "torch-flat")
"""Exhaustive searches; curves are compared with the faster one."""
REACH = 1_000
"""A crossing beyond so many times the largest pool is not told."""
READING = (
    (
        ("hf-generate",),
        "hf-generate ranks by log P over all tokens at once and has no place for the geometric part of the score: its "
        "overlap_at_50 is against the reference search with that score, siglum's against the paper's score.",
    ),
    (
        ("ctranslate2",),
        "ctranslate2 decodes without a trie and takes no vectors: tokens stand for the query, so its results are no "
        "items and it has no overlap_at_50.",
    ),
    (
        ("reference",),
        "reference is siglum's reference search in fp32; ratio_to_reference is against it at the same batch, and "
        "overlap_at_50 against its answers.",
    ),
    (
        ("renormalised", "scan", "scan-rescore"),
        "renormalised, scan and scan-rescore rank by other rules than the paper's search: a lower overlap_at_50 "
        "is their difference, not an error.",
    ),
    (
        ("faiss-hnsw", "faiss-ivf", "faiss-pq"),
        "dense search has no overlap_at_50; recall_at_50 is against exhaustive search of the same vectors.",
    ),
)
"""What to know about systems and modes that were measured."""


def make_rows(parts: Iterable[dict[str, Any]], device: str) -> list[Row]:
    """Return one row a system, mode, precision, pool and batch, in the order they were measured."""
    groups = _grouped(parts)
    rows = [_row(group, device) for _, group in sorted(groups.items(), key=lambda pair: pair[0][:2])]
    slow = {(row["pool"], row["batch"]): row["queries_per_s"] for row in rows if row["system"] == "reference"}
    for row in rows:
        rates = [r["queries_per_s"] for r in rows if is_hf(r) and r["dtype"] == "fp32" and r["pool"] == row["pool"]]
        row["ratio_to_hf"] = row["queries_per_s"] / max(rates) if rates else None
        own = slow.get((row["pool"], row["batch"]))
        row |= {REFERENCE: row["queries_per_s"] / own if own else None} if slow else {}
    return [shortened(row) for row in rows]


def _grouped(parts: Iterable[dict[str, Any]]) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """Return the timed parts of every row, all rounds together."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for part in parts:
        if part["seconds"]:
            groups[part["pool"], part["batch"], part["system"], part["mode"], part["dtype"]].append(part)
    return groups


def is_hf(row: Row) -> bool:
    """Say whether a row is of the peer that ratios are against."""
    return bool(row["system"] == "hf-generate")


def _row(group: list[dict[str, Any]], device: str) -> Row:
    first, times = group[0], sorted(seconds for part in group for seconds in part["seconds"])
    known = max(group, key=lambda part: int(part["checked"]))  # every round compares the same queries, or fewer
    facts = {name: value for part in group for name, value in part["facts"].items()}
    return {
        **{name: first.get(name, device) for name in COLUMNS},
        "queries_per_s": median(rate_of(part) for part in group),
        "ratio_to_hf": None,
        "p50_ms": 1e3 * median(times),
        "p95_ms": 1e3 * times[min(len(times) - 1, round(0.95 * (len(times) - 1)))],
        "overlap_at_50": known["overlap"],
        "reference": first["reference"],
        "checked": known["checked"],
        "rounds": len(group),
        "queries": first["batch"] * len(times),
        "recall_at_50": facts.get("recall_at_50"),
        "item_bytes": facts.get("item_bytes"),
        "build_seconds": facts.get("build_seconds"),
    }


def shortened(row: Row) -> Row:
    """Return a row with five digits of every number that is not whole."""
    return {name: float(f"{value:.5g}") if isinstance(value, float) else value for name, value in row.items()}


def make_notes(rows: list[Row], parts: Iterable[dict[str, Any]]) -> list[str]:
    """Return what to know when reading the rows."""
    parts = list(parts)
    notes = list(dict.fromkeys(note for part in parts for note in part["notes"]))
    hf = [row for row in rows if is_hf(row) and row["dtype"] == "fp32"]
    for pool in sorted({row["pool"] for row in hf}):
        tried = {row["batch"]: row["queries_per_s"] for row in hf if row["pool"] == pool}
        best = max(tried, key=tried.__getitem__)
        notes.append(
            f"hf-generate in fp32 over {pool:,} items is fastest at batch {best} of {', '.join(map(str, tried))}: "
            f"{tried[best]:.3g} queries/s, which ratio_to_hf is against."
        )
    if not hf:
        notes.append("ratio_to_hf is null: hf-generate in fp32 was not measured.")
    skipped: dict[str, set[int]] = defaultdict(set)
    for one in (one for one in parts if not one["seconds"]):
        skipped[f"{one['system']} in {one['dtype']} over {one['pool']:,} items"].add(one["batch"])
    for what, batches in skipped.items():
        notes.append(f"{what} was not timed at batch {_listed(sorted(batches))}: smaller ones gained no more.")
    there = {row["system"] for row in rows} | {row["mode"] for row in rows}
    return notes + [text for names, text in READING if there & set(names)] + who_wins(rows)


def who_wins(rows: list[Row]) -> list[str]:
    """Say for every mode where exhaustive dense search wins, and where the curves over the pool size cross."""
    measured, said = {row["system"] for row in rows}, defaultdict(list)
    for mode in dict.fromkeys(row["mode"] for row in rows if row["system"] == "siglum"):
        for batch in sorted({row["batch"] for row in rows if row["system"] in DENSE}):
            flat = fastest(row for row in rows if row["system"] in DENSE and row["batch"] == batch)
            own = fastest(r for r in rows if r["system"] == "siglum" and r["mode"] == mode and r["batch"] == batch)
            if set(own) & set(flat):
                said[mode, compare(own, flat)].append(batch)
    notes = [
        f"siglum {mode} against exhaustive search at batch {_listed(batches)}: {text}"
        for (mode, text), batches in said.items()
    ]
    for name in sorted(measured & {"faiss-hnsw", "faiss-ivf", "faiss-pq"}):
        times = []
        for row in (row for row in rows if row["system"] == name):
            own = fastest(r for r in rows if r["system"] == "siglum" and r["batch"] == row["batch"])
            times += [row["queries_per_s"] / own[row["pool"]]] if row["pool"] in own else []
        if times:
            often = " to ".join(dict.fromkeys(f"{end:.3g}" for end in (min(times), max(times)))) + " times"
            notes.append(f"{name} answers {often} as many queries as the fastest mode of siglum.")
    return notes


def fastest(rows: Iterable[Row]) -> dict[int, float]:
    """Return the highest rate of these rows by pool."""
    best: dict[int, float] = {}
    for row in rows:
        best[row["pool"]] = max(best.get(row["pool"], 0.0), row["queries_per_s"])
    return best


def compare(own: dict[int, float], flat: dict[int, float]) -> str:
    """Say who is faster over which pools, in one sentence; between pools both are straight lines in logarithms.

    Beyond the largest pool exhaustive search takes time in proportion to it, the worst that it can do, and siglum goes
    on as between the last two pools.

    >>> compare({100: 10.0, 10000: 10.0}, {100: 100.0, 10000: 1.0})
    'dense wins over 100 items, siglum over 10,000; the curves cross near 1,000.'
    >>> compare({100: 10.0, 10000: 10.0}, {100: 10000.0, 10000: 100.0})
    'dense wins over 100 and 10,000 items; beyond what was measured they cross near 100,000 at the earliest.'
    """
    pools = sorted(set(own) & set(flat))
    lead = [log(own[pool] / flat[pool]) for pool in pools]
    loses, wins = (_listed(p for p, x in zip(pools, lead, strict=True) if (x > 0) == up) for up in (False, True))
    said = f"dense wins over {loses} items" + f", siglum over {wins}" * bool(wins)
    if not loses:
        said = f"siglum wins over {wins} items"
    inside = crossings(pools, lead)
    if inside:
        return f"{said}; the curves cross near {_listed(map(_two_digits, inside))}."
    if len(pools) > 1 and lead[-1] <= 0:
        slows = -log(own[pools[-1]] / own[pools[-2]]) / log(pools[-1] / pools[-2])
        times = -lead[-1] / max(1e-9, 1 - max(0.0, slows))
        if times < log(REACH):
            beyond = _listed([_two_digits(pools[-1] * exp(times))])
            return f"{said}; beyond what was measured they cross near {beyond} at the earliest."
        return f"{said}; no crossing is in reach."
    return f"{said}."


def _two_digits(number: float) -> int:
    """Return a number rounded to two digits."""
    return int(float(f"{number:.2g}"))


def _listed(numbers: Iterable[int]) -> str:
    *most, last = [f"{number:,}" for number in numbers] or [""]
    return f"{', '.join(most)} and {last}" if most else last


def markdown(document: dict[str, Any]) -> str:
    """Return the rows as a table, and the notes."""
    beside = (REFERENCE,) if any(REFERENCE in row for row in document["rows"]) else ()
    return page("Speed of search", document, (*COLUMNS, *SHOWN[:2], *beside, *SHOWN[2:]))


def page(title: str, document: dict[str, Any], head: Sequence[str], *more: str) -> str:
    """Return a document as text: what it was measured on, a table of these columns, and the notes."""
    rows = [[_cell(name, row[name]) for name in head] for row in document["rows"]]
    align = "".join("l" if place < head.index("pool") else "r" for place in range(len(head)))
    lines, notes = Table("speed", title, [*head], rows, align=align).grid(), [f"- {note}" for note in document["notes"]]
    return "\n".join([f"# {title}", "", surroundings(document), *more, "", *lines, "", *notes]) + "\n"


def surroundings(document: dict[str, Any]) -> str:
    """Say what was measured on, and how busy it was."""
    machine, threads = document["machine"], document["settings"]["threads"]
    where = machine.get("gpu") or f"{machine.get('cpu')}, {threads} thread{'s' * (threads != 1)}"
    load = document["load_average"]
    return f"{where}; load average {load['before']:.2f} before and {load['after']:.2f} after."


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    times = name.startswith("ratio_to")
    if name in ("overlap_at_50", "recall_at_50") or ("ratio" in name and not times):
        return f"{value:.3f}"
    if isinstance(value, float):
        return _three_digits(value) + "x" * times
    return f"{value:,}" if isinstance(value, int) else str(value)


def _three_digits(value: float) -> str:
    """Return a positive number with three digits or all those before the point.

    >>> [_three_digits(x) for x in (12345.6, 12.0, 1.25, 0.0577, 9.999)]
    ['12,346', '12.0', '1.25', '0.0577', '10.0']
    """
    rounded = float(f"{value:.3g}")
    digits = 2 - floor(log10(rounded)) if rounded > 0 else 0
    return f"{value:,.{max(0, digits)}f}"


def spread_of(parts: Iterable[dict[str, Any]]) -> float:
    """Return how far the rates of a row lie apart between rounds, as a share of their mean, on average."""
    rows = [[rate_of(part) for part in group] for group in _grouped(parts).values()]
    return mean((max(rates) - min(rates)) / mean(rates) for rates in rows) if rows else 0.0
