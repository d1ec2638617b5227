"""Tables and figures of the experiment on efficiency."""

from __future__ import annotations

from typing import Any

from siglum.lab.experiments.base import Part
from siglum.lab.experiments.efficiency_bytes import RIVALS
from siglum.lab.experiments.plots import Figure, Panel, Series, short
from siglum.lab.tables import Table

SYSTEMS = {
    "generative": "generative",
    "fused": "generative + fusion",
    "dense_fp32": "dense flat fp32",
    "dense_fp16": "dense flat fp16",
    "hnsw": "HNSW (CPU)",
    "scan": "scan of codes",
}
STYLES = {
    name: place
    for place, name in enumerate(("generative", "fused", "dense_fp32", "dense_fp16", "hnsw", "scan", "pq20"))
}
LABELS = {**SYSTEMS, "pq20": "PQ, 20 bytes"}
SIZES = (5_000, 50_000, 335_000, 1_000_000)
"""The pool sizes of the paper's table."""


def batches_of(parts: list[Part]) -> list[str]:
    """Return the sizes of batches that were timed, small to large."""
    return sorted(parts[0]["speed"]["fused"], key=int)


def speed_table(parts: list[Part], results: dict[str, Any], about: str) -> Table:
    """Return queries a second by system, batch and pool, and where each is overtaken."""
    rows = []
    for batch in batches_of(parts):
        for name, label in SYSTEMS.items():
            found = [part["speed"].get(name, {}).get(batch) for part in parts]
            if any(found):
                crossing = results["crossings"][batch].get(name, "")
                cells = [f"{one['rate']:,.{0 if one['rate'] >= 100 else 1}f}" if one else "–" for one in found]
                rows.append(
                    [f"{label}, batch {batch}", *cells, crossing if isinstance(crossing, str) else f"{crossing:,}"]
                )
    recall = [f"{100 * one['recall']:.0f} % at {short(int(items))}" for items, one in results["hnsw"].items()]
    slow = any(one is None for part in parts for rates in part["speed"].values() for one in rates.values())
    notes = [
        f"Queries a second, the best ten items each. {about}",
        "Slower from: the size of pool from which the system answers fewer queries a second than generative search "
        "with fusion. The paper has dense search cross near 50,000.",
        *([f"HNSW finds of the true ten: {', '.join(recall)}."] if recall else []),
        *(["A dash or a missing line: one batch would take over a minute."] if slow else []),
        *(f"{note}." for note in results["notes"]),
    ]
    return Table(
        "throughput", "Throughput", ["system", *(short(part["items"]) for part in parts), "slower from"], rows, notes
    )


def byte_table(cost: dict[str, dict[str, float]], about: str) -> Table:
    """Return bytes an item, fixed bytes, and both together at the pool sizes of the paper."""
    labels = {**LABELS, "codes": "codes alone, packed", "codes_paper": "codes alone, two bytes a level (paper)"}
    rows = []
    for name, label in labels.items():
        if name in cost:
            totals = [cost[name]["fixed"] + size * cost[name]["item"] for size in SIZES]
            ratio = cost["dense_fp32"]["item"] / cost[name]["item"]
            cells = [f"{cost[name]['item']:,.0f}", f"{cost[name]['fixed'] / 2**20:,.2f}", f"{ratio:.1f}"]
            rows.append([label, *cells, *(f"{total / 2**20:,.2f}" for total in totals)])
    head = ["system", "bytes an item", "fixed MiB", "× fp32, items alone", *(f"MiB at {short(size)}" for size in SIZES)]
    notes = [
        f"Fixed: decoder and codebooks in fp32; MiB at N counts both. {about}",
        "Scan of codes: the index, and beside it the codes unpacked for speed and the length of every reconstruction.",
        "The paper's factor of 96 counts two bytes a level against fp32 vectors of 768 numbers, and no decoder.",
    ]
    return Table("bytes", "Bytes an item and fixed bytes", head, rows, notes)


def break_even_table(found: dict[str, dict[str, int | None]]) -> Table:
    """Return from how many items on the generative index is the smaller one."""
    words = {
        name: f"{LABELS[name.removesuffix('_fp16')]}, weights in {'fp16' if name.endswith('16') else 'fp32'}"
        for name in found
    }
    rows = [
        [words[name], *("never" if sizes[rival] is None else f"{sizes[rival]:,}" for rival in RIVALS)]
        for name, sizes in found.items()
    ]
    note = "Never: the index takes at least as many bytes an item as the rival, so that no pool pays for the decoder."
    head = ["system", *(f"against {LABELS[rival]}" for rival in RIVALS)]
    return Table("break-even", "Items from which the generative index is the smaller one", head, rows, [note])


def speed_figure(parts: list[Part]) -> Figure:
    """Draw queries a second against the size of the pool, one panel a batch."""
    panels = []
    for batch in batches_of(parts):
        series = []
        for name, label in SYSTEMS.items():
            found = [(part["items"], part["speed"].get(name, {}).get(batch)) for part in parts]
            there = [(items, one["rate"]) for items, one in found if one]
            if there:
                x, y = zip(*there, strict=True)
                series.append(Series(label=label, x=list(x), y=list(y), style=STYLES[name]))
        if series:
            words = "1 query at a time" if batch == "1" else f"{batch} queries at a time"
            panels.append(
                Panel(
                    kind="lines",
                    title=words,
                    series=series,
                    x_label="items in the pool",
                    y_label="queries a second",
                    log_x=True,
                    log_y=True,
                )
            )
    batch = [batch for batch in batches_of(parts) if all(part["speed"]["fused"][batch] for part in parts)][-1]
    fused, flat = (
        [part["speed"][name][batch]["rate"] for part in (parts[0], parts[-1])] for name in ("fused", "dense_fp32")
    )
    title = (
        f"Queries a second from {short(parts[0]['items'])} to {short(parts[-1]['items'])} items at batch {batch}: "
        f"generative + fusion {short(fused[0])} to {short(fused[1])}, dense fp32 {short(flat[0])} to {short(flat[1])}"
    )
    return Figure(name="throughput", title=title, panels=panels)


def byte_figure(cost: dict[str, dict[str, float]], found: dict[str, dict[str, int | None]]) -> Figure:
    """Draw all bytes of every system against the size of the pool."""
    x = [10.0**power for power in range(3, 10)]
    series = [
        Series(
            label=label, x=x, y=[(cost[name]["fixed"] + n * cost[name]["item"]) / 2**20 for n in x], style=STYLES[name]
        )
        for name, label in LABELS.items()
        if name in cost
    ]
    panel = Panel(kind="lines", series=series, x_label="items in the pool", y_label="MiB", log_x=True, log_y=True)
    even = found["fused"]["dense_fp32"]
    words = "in no pool" if even is None else f"from {short(even)} items on"
    title = f"Bytes, decoder included: generative + fusion is smaller than fp32 vectors {words}"
    return Figure(name="bytes", title=title, panels=[panel])
