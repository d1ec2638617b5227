"""The part of the page about runs that tells where they lose their targets: verdicts, survival and ladders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from siglum.measure.charts import Series, draw_bars, draw_lines
from siglum.measure.page import MISSING, percent, render_rows
from siglum.measure.run_parts import fold, paint, points, section, sentence, swatch
from siglum.measure.run_report import Document, Portrait

RUNG_PAINTS = {
    "teacher": "dense",
    "oracle": "scan",
    "geometry": "geometry",
    "decoder": "genius",
    "fused": "pro",
    "look-ahead": "spare0",
}
"""The rungs in order, and their colours by the page's names."""
Diagnosis = Mapping[str, Any]
"""What `siglum.measure.diagnose` returns."""


def render_losses(document: Document) -> str:
    """Return the section of losses; nothing where no run has a tokenizer."""
    runs: Sequence[Portrait] = document["runs"]
    told = [(place, run) for place, run in enumerate(runs) if run["diagnosis"]]
    if not told:
        return ""
    verdicts = f'<div class="grid systems">{"".join(_verdict(place, run) for place, run in told)}</div>'
    alone = len(runs) == 1
    more = [_ladder_of_one(told[0][1])] if alone else [_in_beam(told), _under_beam(told), _ladder_ends(told)]
    charts = f'<div class="grid charts">{_token(told)}{"".join(more)}</div>'
    tables = [_health(told)]
    for _, run in told:
        inner = ("" if alone else f'<div class="grid charts">{_ladder_of_one(run)}</div>') + _tables(run)
        tables.append(fold("Level by level" if alone else f"{run['name']}, level by level", inner))
    return section("Where targets are lost", verdicts, charts, *tables)


def _verdict(place: int, run: Portrait) -> str:
    told = run["diagnosis"]
    words = "".join(f"<p>{sentence(text)}</p>" for text in (told["verdict"], *told["notes"]))
    scope = f"{told['queries']:,} queries, beam {told['beam']}, ±{percent(told['margin'])} points at most (95 %)"
    name = swatch(run["name"], paint(place))
    return (
        f'<div class="card verdict" style="--own:{paint(place)}"><h3>{name}</h3>{words}'
        f'<p class="note">{escape(scope)}</p></div>'
    )


def _ticks(told: Sequence[tuple[int, Portrait]]) -> list[int]:
    """Return all levels of all runs; 0 is the modality token."""
    return sorted({level["level"] for _, run in told for level in run["diagnosis"]["levels"]})


def _tick_names(levels: Sequence[int]) -> list[str]:
    return [str(level) if level else "M" for level in levels]


def _along(diagnosis: Diagnosis, values: Sequence[float], ticks: Sequence[int]) -> list[float | None]:
    """Return values by level at the places of all levels."""
    by_level = dict(zip((level["level"] for level in diagnosis["levels"]), values, strict=True))
    return [by_level.get(tick) for tick in ticks]


def _rung(diagnosis: Diagnosis, name: str) -> Any:
    return next((rung for rung in diagnosis["ladder"] if rung["rung"] == name), None)


def _token(told: Sequence[tuple[int, Portrait]]) -> str:
    """Draw token survival under the oracle, with chance; the modality token is no codeword and is left out."""
    ticks = [level for level in _ticks(told) if level]
    rows = [[one["survival"] for one in run["diagnosis"]["levels"]] for _, run in told]
    beams = sorted({run["diagnosis"]["beam"] for _, run in told})
    words = (
        f"Given the right prefix so far, is the target’s code among the {beams[0] if len(beams) == 1 else 'B'} best of"
        " its level by the quantised oracle? Dashed: what guessing gives (B/V)."
    )
    return _figure("Token survival", words, ticks, [*_curves(told, rows, ticks), *_chances(told, "chance", ticks)])


def _in_beam(told: Sequence[tuple[int, Portrait]]) -> str:
    """Draw the targets left in each run's own beam, with chance."""
    ticks = _ticks(told)
    rows = [_rung(run["diagnosis"], run["diagnosis"]["own"])["survival"] for _, run in told]
    words = (
        "Share of targets whose prefix is still in the beam of the run’s own search after each level. Dashed: a beam of"
        " prefixes drawn blindly."
    )
    series = [*_curves(told, rows, ticks), *_chances(told, "prefix_chance", ticks)]
    return _figure("Targets in the beam", words, ticks, series)


def _under_beam(told: Sequence[tuple[int, Portrait]]) -> str:
    """Draw how much of the pool each run's own beam still holds."""
    ticks = _ticks(told)
    rows = [_rung(run["diagnosis"], run["diagnosis"]["own"])["leaves"] for _, run in told]
    words = "Share of all items under the prefixes in the beam: where it is large, surviving is no feat yet."
    return _figure("The pool under the beam", words, ticks, _curves(told, rows, ticks))


def _curves(
    told: Sequence[tuple[int, Portrait]], rows: Sequence[Sequence[float]], ticks: Sequence[int]
) -> list[Series]:
    """Return one line a run."""
    return [
        Series(run["name"], _along(run["diagnosis"], values, ticks), paint(place), place)
        for (place, run), values in zip(told, rows, strict=True)
    ]


def _chances(told: Sequence[tuple[int, Portrait]], key: str, ticks: Sequence[int]) -> list[Series]:
    """Return the lines of chance, one for all runs that share it."""
    groups: dict[tuple[float | None, ...], list[tuple[int, str]]] = {}
    for place, run in told:
        values = _along(run["diagnosis"], [one[key] for one in run["diagnosis"]["levels"]], ticks)
        groups.setdefault(tuple(values), []).append((place, run["name"]))
    if len(groups) == 1:
        return [Series("chance", next(iter(groups)), "var(--muted)", reference=True)]
    rows = []
    for shared, ((place, name), *others) in groups.items():
        label = f"chance {name}" + (f" +{len(others)}" if others else "")
        rows.append(Series(label, shared, paint(place), reference=True))
    return rows


def _figure(title: str, words: str, ticks: Sequence[int], series: Sequence[Series]) -> str:
    caption = f"<figcaption><b>{escape(title)}</b>{escape(words)}</figcaption>"
    ends = []
    for row in series:
        known = [value for value in row.values if value is not None]
        ends.append(f"{row.label} {percent(known[0])} to {percent(known[-1])} %")
    axis = "level" if 0 not in ticks else "level, after M for the modality token"
    chart = draw_lines(_tick_names(ticks), series, f"{title}, first to last: {'; '.join(ends)}", axis)
    return f"<figure>{caption}{chart}</figure>"


def _ladder_of_one(run: Portrait) -> str:
    """Draw every rung of a run's ladder, level by level."""
    told = run["diagnosis"]
    ticks = [level["level"] for level in told["levels"]]
    rungs = [
        Series(rung["rung"], rung["survival"], f"var(--{RUNG_PAINTS[rung['rung']]})", marker)
        for marker, rung in enumerate(told["ladder"])
    ]
    chance = Series("chance", told["ladder"][0]["chance"], "var(--muted)", reference=True)
    pool = Series("pool under beam", _rung(told, told["own"])["leaves"], "var(--spare1)", reference=True)
    words = (
        "One trie, one beam, and scores that come closer to the real search: exact similarities (teacher), quantised"
        " ones (oracle), distances (geometry)"
    )
    words += ", the decoder, and both (fused)." if told["decoder"] else "."
    words += f" Dashed: a beam drawn blindly, and the share of the pool under the beam of {told['own']}."
    return _figure(f"The ladder of {run['name']}", words, ticks, [*rungs, chance, pool])


def _ladder_ends(told: Sequence[tuple[int, Portrait]]) -> str:
    """Draw for every rung the share of targets that reach the last level, run by run."""
    names = [name for name in RUNG_PAINTS if any(_rung(run["diagnosis"], name) for _, run in told)]
    rows = []
    for place, run in told:
        rungs = [_rung(run["diagnosis"], name) for name in names]
        rows.append(Series(run["name"], [rung["survival"][-1] if rung else None for rung in rungs], paint(place)))
    words = (
        "Targets that reach the last level, by what ranks the prefixes: exact similarities (teacher), quantised ones"
        " (oracle), distances (geometry), the decoder, and both (fused)."
    )
    keys = "".join(f"<li>{swatch(run['name'], paint(place))}</li>" for place, run in told)
    caption = f'<figcaption><b>The ladder</b>{escape(words)}<ul class="legend">{keys}</ul></figcaption>'
    return f"<figure>{caption}{draw_bars(names, rows, 'Targets that reach the last level, by rung and run')}</figure>"


def _health(told: Sequence[tuple[int, Portrait]]) -> str:
    head = ("Codes", "Items", "Distinct codes", "Items sharing a code, %", "Most on one code", "Error")
    rows = []
    for _, run in told:
        own = run["diagnosis"]["health"]
        counts = f"{own['items']:,}", f"{own['distinct']:,}", percent(own["collision_rate"])
        rows.append((run["name"], *counts, f"{own['largest_collision']:,}", f"{own['reconstruction']:.4f}"))
    return render_rows("How well codes tell items apart; the error is the mean squared distance", head, rows)


def _tables(run: Portrait) -> str:
    return _levels_table(run["diagnosis"]) + _ladder_table(run["diagnosis"]) + _lost_table(run["diagnosis"])


def _levels_table(told: Diagnosis) -> str:
    head = [
        "Level",
        "Codewords",
        "Used, %",
        "Dead",
        "Bits",
        "Error left",
        "Prefixes",
        "Token, %",
        "B/V, %",
        "Leaves, %",
    ]
    head += ["K", "m", *(["ε", "ε fused"] if told["decoder"] else [])]
    rows = []
    for name, one in zip(_tick_names([level["level"] for level in told["levels"]]), told["levels"], strict=True):
        use = [f"{one['size']:,}", percent(one["usage"]), f"{one['dead']:,}", f"{one['entropy']:.1f}"]
        kept = [percent(one[key]) for key in ("survival", "chance", "leaves")]
        bound = [f"{one['K']:.3f}", f"{one['m']:.3f}"]
        bound += [_decimal(one[key]) for key in ("eps", "eps_fused")] if told["decoder"] else []
        rows.append([name, *use, f"{one['error']:.4f}", f"{one['prefixes']:,.0f}", *kept, *bound])
    caption = (
        "The codes. Token: the target’s code is among the B best by the oracle; B/V: chance; leaves: the share of the"
        " pool under the oracle’s beam; K: divergence of oracle from teacher; m: the teacher’s margin"
    )
    caption += "; ε: distance of the decoder from the oracle" if told["decoder"] else ""
    return render_rows(caption, head, rows)


def _decimal(value: float | None) -> str:
    return MISSING if value is None else f"{value:.3f}"


def _ladder_table(told: Diagnosis) -> str:
    rungs = told["ladder"]
    rows = []
    for place, level in enumerate(told["levels"]):
        cells = [f"{percent(rung['survival'][place])} ({percent(rung['leaves'][place])})" for rung in rungs]
        rows.append([*_tick_names([level["level"]]), percent(level["prefix_chance"]), *cells])
    caption = "The ladder: targets still in the beam in per cent; in brackets the share of the pool under it"
    return render_rows(caption, ["Level", "Chance", *(rung["rung"] for rung in rungs)], rows)


def _lost_table(told: Diagnosis) -> str:
    rungs = told["ladder"]
    rows = [
        [*_tick_names([level["level"]]), *(points(rung["share"][place]).lstrip("+") for rung in rungs)]
        for place, level in enumerate(told["levels"])
    ]
    rows.append(["all", *(points(sum(rung["share"])).lstrip("+") for rung in rungs)])
    caption = "Points lost beyond the rung to the left; below 0 is won back"
    return render_rows(caption, ["Level", *(rung["rung"] for rung in rungs)], rows)
