"""The table and the figure of where generative search wins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from siglum.lab.experiments.base import Part
from siglum.lab.experiments.plots import Figure, Panel, Series, short
from siglum.lab.tables import Table

ALIKE = 0.95
"""Share of exhaustive search's Success@10 from which on a system counts as good enough."""
BATCHED = "64"


def milliseconds(one: dict[str, Any], batch: str = "1") -> float | None:
    """Return the time of a query by the median call; None where it was not timed.

    >>> milliseconds({"speed": {"1": {"rate": 200.0}}})
    5.0
    """
    found = one["speed"].get(batch)
    return None if found is None else 1000.0 / found["rate"]


def front(region: dict[str, Any]) -> list[str]:
    """Return the systems that no other beats in one of Success@10, bytes and latency without losing in another.

    >>> fast, small = ({"success@10": 0.5, "bytes": b, "speed": {"1": {"rate": r}}} for b, r in ((9, 9.0), (1, 1.0)))
    >>> front({"fast": fast, "small": small, "neither": {**fast, "success@10": 0.4}})
    ['fast', 'small']
    """
    points = {name: (-one["success@10"], one["bytes"], milliseconds(one) or 1e9) for name, one in region.items()}

    def beaten(mine: tuple[float, ...]) -> bool:
        return any(other != mine and all(a <= b for a, b in zip(other, mine, strict=True)) for other in points.values())

    return [name for name, mine in points.items() if not beaten(mine)]


def winners(part: Part) -> list[str]:
    """Return sentences on who is fastest and who is smallest of those that find nearly what exhaustive search finds."""
    region = part["region"]
    least = ALIKE * region["flat"]["success@10"]
    good = {name: one for name, one in region.items() if one["success@10"] >= least}
    times = {name: ms for name, one in good.items() if (ms := milliseconds(one)) is not None}
    smallest = min(good, key=lambda name: good[name]["bytes"])
    told = f"smallest {smallest} ({good[smallest]['bytes']:,.0f} bytes an item)"
    if times:
        fastest = min(times, key=times.__getitem__)
        told = f"fastest {fastest} ({times[fastest]:.2g} ms), {told}"
    codes = [name for name in front(region) if ", beam" in region[name]["family"] or ", scan" in region[name]["family"]]
    own = f"undominated among codes: {', '.join(codes)}" if codes else "no search of codes is undominated"
    return [f"{part['items']:,} items, of those with {100 * ALIKE:.0f} % of flat's Success@10: {told}; {own}."]


def region_table(parts: list[Part]) -> Table:
    """Return Success@10, recall of flat's ten, bytes and latency of every system on every pool."""
    names = list(dict.fromkeys(name for part in parts for name in part["region"]))
    head, rows = ["system"], [[name] for name in names]
    for part in parts:
        best = front(part["region"])
        head += [f"{short(part['items'])}: S@1", "S@10", "of flat's 10", "bytes an item", "ms", f"ms at {BATCHED}"]
        for row, name in zip(rows, names, strict=True):
            one = part["region"].get(name)
            if one is None:
                row += ["–"] * 6
                continue
            times = [milliseconds(one, batch) for batch in ("1", BATCHED)]
            cells = [f"{100 * one[measure]:.1f}" for measure in ("success@1", "success@10", "recall")]
            cells += [f"{one['bytes']:,.1f}", *("–" if ms is None else f"{ms:.3g}" for ms in times)]
            row += [f"**{cell}**" if name in best else cell for cell in cells]
    about, size = parts[-1], parts[-1]["size"]
    notes = [
        f"Task {about['task']}, {about['queries']:,} test queries, its own pool with distractors added. Per cent; "
        "bytes of all that is stored, decoder, codebooks and query head included, by the number of items; milliseconds "
        f"a query, one at a time and in batches of {BATCHED}, from its fused vector on.",
        f"faiss searches the space that the recipe's codes are made of, of {size['dim']} numbers; best has "
        f"{size['best_dim']}.",
        "Bold: no other system is better in one of Success@10, bytes and latency without being worse in another.",
        *(sentence for part in parts for sentence in winners(part)),
        *sorted({f"{note}." for part in parts for note in part["notes"] if "left out" in note}),
    ]
    return Table("region", "Where generative search wins: recall, bytes and latency", head, rows, notes)


def region_figure(parts: list[Part]) -> Figure:
    """Draw Success@10 against latency and against bytes, one column a pool."""
    families = list(dict.fromkeys(one["family"] for part in parts for one in part["region"].values()))
    panels = []
    axes: dict[str, Callable[[dict[str, Any]], float | None]] = {
        "milliseconds a query": milliseconds,
        "bytes an item, all counted": lambda one: float(one["bytes"]),
    }
    for words, value in axes.items():
        for part in parts:
            series = []
            for style, family in enumerate(families):
                points = [one for one in part["region"].values() if one["family"] == family]
                pairs = sorted((x, float(one["success@10"])) for one in points if (x := value(one)) is not None)
                if pairs:
                    series.append(Series(family, [y for _, y in pairs], [x for x, _ in pairs], style=style))
            title = f"{short(part['items'])} items"
            panels.append(Panel("points", series, words, "Success@10", title, log_x=True, share=True))
    title = f"Success@10 against latency and bytes on one trained space, task {parts[0]['task']}"
    return Figure("region", title, panels, columns=len(parts))
