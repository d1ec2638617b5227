"""The look of the report: its style, its tables and pictures, and how systems are named and coloured."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from io import BytesIO
from math import fsum
from typing import Any

import numpy as np

from siglum.data.world import TASK_LABELS, TASKS
from siglum.types import SiglumError

Report = Mapping[str, Any]
"""The content of `report.json`."""
Results = Mapping[str, Mapping[str, Mapping[str, float]]]
"""task -> system -> measure -> value."""
Row = Mapping[str, Mapping[str, float | None]] | Mapping[str, Mapping[str, float]]

MISSING = "–"
REFERENCES = ("dense", "scan", "geometry")
"""Systems without a decoder; all others count as generative."""
NAMES = {
    "dense": "dense",
    "scan": "scan",
    "geometry": "geometry",
    "genius": "GENIUS",
    "pro": "PRO",
    "pro_without_pd": "PRO without PD",
}
WORDS = {
    "dense": "Compares the query’s vector with every item’s vector. Nothing is quantised and nothing pruned, so this is"
    " the mark the others are held against.",
    "scan": "Compares the query with every item as its codes rebuild it. What it loses to dense search is lost in"
    " the codes, before any pruning.",
    "geometry": "Beam search through PRO’s codes by distance alone, without a decoder. What it loses to scan is lost by"
    " pruning the beam.",
    "genius": "The generative baseline: a decoder writes an item’s code token by token, and a beam keeps the likeliest"
    " prefixes. All levels have vocabularies of one size, and the decoder alone ranks.",
    "pro": "Prefix retention optimisation: codes are trained so that early prefixes rank as dense search does (PD),"
    " early levels have small vocabularies (VS), and the beam adds distance to the decoder’s score (SF).",
    "pro_without_pd": "PRO’s codes trained without prefix distillation (PD). They are measured for survival only and"
    " show what that part adds.",
}
SPARE_COLOURS = 3
"""Colours kept for systems without one of their own."""
THUMBNAIL = 192
"""Most pixels a side of a picture; twice what the page shows, for fine screens."""
CSS = """
:root{color-scheme:light dark;--page:#f5f6f8;--card:#fff;--ink:#1b1f24;--muted:#5b6470;--line:#d9dde3;--good:#007a59;
--bad:#c04f00;--dense:#7a828e;--scan:#56b4e9;--geometry:#009e73;--genius:#d55e00;--pro:#0072b2;
--pro_without_pd:#b65c8e;--spare0:#b98300;--spare1:#4b4fa3;--spare2:#000}
@media(prefers-color-scheme:dark){:root{--page:#101317;--card:#191d23;--ink:#e8ebef;--muted:#a2abb7;--line:#323943;
--good:#2fc298;--bad:#f08a45;--dense:#98a1ad;--scan:#a9daf7;--geometry:#17ad83;--genius:#e8742c;--pro:#3d97de;
--pro_without_pd:#d88bb5;--spare0:#e69f00;--spare1:#9a9eea;--spare2:#fff}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.55 system-ui,"Segoe UI",Roboto,"Helvetica Neue",
"Liberation Sans",sans-serif;-webkit-text-size-adjust:100%}
main{max-width:1120px;margin:0 auto;padding:40px 20px 56px}
h1{font-size:.95rem;font-weight:600;color:var(--muted);margin:0 0 10px}
.finding{font-size:clamp(1.4rem,3.4vw,2.15rem);line-height:1.25;font-weight:650;letter-spacing:-.015em;margin:0;
max-width:30em;text-wrap:balance}
.lead{color:var(--muted);font-size:1.05rem;margin:14px 0 0;max-width:44em}
h2{font-size:1.3rem;letter-spacing:-.01em;margin:52px 0 4px}
h3{font-size:1rem;margin:0 0 4px}
p{margin:6px 0;max-width:48em}
.note{color:var(--muted);font-size:.9rem}
.grid{display:grid;gap:16px;margin:16px 0}
.figures{grid-template-columns:repeat(auto-fit,minmax(200px,1fr));margin-top:28px}
.charts{grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr))}
.systems{grid-template-columns:repeat(auto-fit,minmax(min(100%,310px),1fr))}
.card,figure{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:16px 18px;margin:0}
.card p{margin:0}
.card .big{font-size:2rem;line-height:1.2;font-weight:650;letter-spacing:-.02em;font-variant-numeric:tabular-nums}
figure{display:flex;flex-direction:column}
figure svg{display:block;width:100%;max-width:580px;height:auto;margin:auto auto 0;padding-top:6px}
figcaption{font-size:.9rem;color:var(--muted)}figcaption b{display:block;color:var(--ink);font-size:1rem}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;list-style:none;margin:12px 0 0;padding:0;font-size:.9rem}
.swatch{display:inline-block;width:.8em;height:.8em;border-radius:3px;margin-right:.45em}
.scroll{overflow-x:auto;background:var(--card);border:1px solid var(--line);border-radius:12px;margin:16px 0}
table{border-collapse:collapse;width:100%;font-size:.9rem;font-variant-numeric:tabular-nums}
caption{text-align:left;color:var(--muted)}
caption span{display:inline-block;position:sticky;left:0;padding:12px 14px 8px;max-width:min(100%,calc(100vw - 34px))}
th,td{padding:6px 9px;text-align:right;white-space:nowrap;border-top:1px solid var(--line);font-weight:400}
thead th{color:var(--muted);border-top:0;vertical-align:bottom}thead th[colspan]{color:var(--ink);font-weight:600}
tbody th,thead .corner{position:sticky;left:0;background:var(--card);text-align:left}
thead th[colspan]{text-align:center}.first,thead th[colspan]{padding-left:24px}
.settings td{text-align:left;white-space:normal}.settings th[scope=col]{text-align:left}
tr.mean th,tr.mean td{border-top:2px solid var(--muted)}
td b{font-weight:750}
details{margin:16px 0}summary{cursor:pointer;font-weight:600;padding:6px 0}
.example{margin:16px 0;display:grid;grid-template-columns:minmax(200px,1fr) minmax(0,3fr);gap:18px 26px}
.example h3{grid-column:1/-1;margin:0}.ask{display:grid;gap:14px;align-content:start}
.example .note{margin-bottom:14px}.example .tag{font-size:.85rem;font-weight:600;margin:0 0 5px}
.hits{display:grid;grid-template-columns:repeat(3,minmax(0,1fr));gap:8px;list-style:none;margin:0 0 14px;padding:0}
.thing{border:2px solid var(--line);border-radius:10px;padding:8px;font-size:.82rem;line-height:1.35;
overflow-wrap:anywhere}li>.thing{height:100%}
.both{display:flex;gap:9px}.thing img{display:block;width:104px;max-width:100%;height:auto;border-radius:6px;flex:none;
align-self:start}
.thing p{margin:0}.id{color:var(--muted);font-size:.75rem}.thing .mark{margin:0 0 4px}
.spoken{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
.right{border-color:var(--good)}.wrong{border-color:var(--bad);border-style:dashed}
.right .mark b{color:var(--good)}.wrong .mark b{color:var(--bad)}
@media(max-width:720px){main{padding:24px 14px 40px}.example{grid-template-columns:minmax(0,1fr)}h2{margin-top:38px}
.figures{grid-template-columns:1fr 1fr;gap:10px}.card{padding:12px 14px}.card .big{font-size:1.55rem}
figure{padding:12px 10px}.hits{grid-template-columns:1fr}
.hits.pictures{grid-template-columns:repeat(3,minmax(0,1fr))}.pictures .thing{padding:6px}.pictures .id{display:block}}
@media print{body{background:#fff}.card,figure,.scroll{break-inside:avoid}}
"""


def render_page(title: str, body: str) -> str:
    """Return a whole page around a body of HTML."""
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,"><title>{escape(title)}</title>'
    )
    style = f"<style>{CSS}</style>"
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}{style}</head>\n<body><main>\n{body}\n</main></body></html>\n'


def in_order(keys: Iterable[str], usual: Iterable[str]) -> list[str]:
    """Return distinct keys: the usual ones in their order, then the others by name."""
    found, known = set(keys), list(usual)
    return [key for key in known if key in found] + sorted(found.difference(known))


def name_system(system: str) -> str:
    """Return the name a system goes by on the page; an unknown one keeps its own.

    >>> name_system("genius")
    'GENIUS'
    """
    return NAMES.get(system, system)


def colour_system(system: str, among: Iterable[str]) -> str:
    """Return the paint of a system as CSS; unknown systems among those shown share the spare colours in turn."""
    if system in NAMES:
        return f"var(--{system})"
    return f"var(--spare{sorted(set(among).difference(NAMES)).index(system) % SPARE_COLOURS})"


def mark_system(system: str) -> int:
    """Return the number of a system's marker in charts, so that it is the same in all of them."""
    return list(NAMES).index(system) if system in NAMES else len(NAMES)


def systems_of(results: Results) -> list[str]:
    """Return the systems measured on any task, in their usual order."""
    return in_order((system for row in results.values() for system in row), NAMES)


def name_task(task: str) -> str:
    """Return a task as the page writes it.

    >>> name_task("t2it")
    't→(i,t)'
    """
    return TASK_LABELS.get(task, task or "all")


def percent(share: float | None) -> str:
    """Write a share in per cent with one digit.

    >>> percent(0.7851), percent(None)
    ('78.5', '–')
    """
    return MISSING if share is None else f"{100 * share:.1f}"


def mean_over_tasks(results: Results, system: str, measure: str) -> float | None:
    """Return a measure's mean over tasks, or None unless every task has a value."""
    values = [row.get(system, {}).get(measure) for row in results.values()]
    known = [value for value in values if value is not None]
    return fsum(known) / len(known) if known and len(known) == len(values) else None


def render_table(caption: str, head: str, body: str) -> str:
    """Return a table that scrolls sideways where it must, of rows already in HTML."""
    inner = (
        f"<table><caption><span>{escape(caption)}</span></caption><thead>{head}</thead><tbody>{body}</tbody></table>"
    )
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}">{inner}</div>'


def render_rows(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of plain cells; the first of every row is its head."""
    first, *others = (escape(cell) for cell in head)
    top = f'<th scope="col" class="corner">{first}</th>' + "".join(f'<th scope="col">{cell}</th>' for cell in others)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in row[1:])}</tr>'
        for row in rows
    )
    return render_table(caption, f"<tr>{top}</tr>", body)


def render_results(results: Results, measures: Mapping[str, str], caption: str) -> str:
    """Return the table task by system by measure in per cent, with the means below; nothing if no measure is there.

    `measures` gives each measure's head. In every row and measure the best generative system is bold.
    """
    measures = {
        m: head for m, head in measures.items() if any(m in own for row in results.values() for own in row.values())
    }
    if not measures:
        return ""
    systems = systems_of(results)
    top = "".join(f'<th scope="colgroup" colspan="{len(measures)}">{escape(name_system(s))}</th>' for s in systems)
    heads = [f'<th scope="col"{_start(i)}>{escape(head)}</th>' for i, head in enumerate(measures.values())]
    below = "".join(heads * len(systems))
    rows: list[tuple[str, Row, str]] = [(name_task(task), results[task], "") for task in in_order(results, TASKS)]
    if len(rows) > 1:
        mean = {s: {m: mean_over_tasks(results, s, m) for m in measures} for s in systems}
        rows.append(("mean", mean, ' class="mean"'))
    body = "".join(
        f'<tr{kind}><th scope="row">{escape(name)}</th>{_results_row(row, systems, measures)}</tr>'
        for name, row, kind in rows
    )
    return render_table(
        caption, f'<tr><th scope="col" rowspan="2" class="corner">Task</th>{top}</tr><tr>{below}</tr>', body
    )


def _results_row(row: Row, systems: list[str], measures: Iterable[str]) -> str:
    shown = {(system, measure): percent(row.get(system, {}).get(measure)) for system in systems for measure in measures}
    best = {}
    for measure in measures:
        rivals = [shown[s, measure] for s in systems if s not in REFERENCES and shown[s, measure] != MISSING]
        # Compared as shown, so that of two equal numbers on the page both are best; a lone system has no rival.
        best[measure] = max(rivals, key=float) if len(rivals) > 1 else ""
    cells = []
    for system in systems:
        for i, measure in enumerate(measures):
            text = shown[system, measure]
            bold = text == best[measure] and system not in REFERENCES
            cells.append(f"<td{_start(i)}>{f'<b>{text}</b>' if bold else text}</td>")
    return "".join(cells)


def _start(place: int) -> str:
    """Set the first column of every system apart from the one before."""
    return ' class="first"' if place == 0 else ""


def encode_png(pixels: np.ndarray) -> str:
    """Return pixels, uint8 (height, width, 3), as a small PNG in base64."""
    from PIL import Image

    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise SiglumError(f"a picture must be uint8 (height, width, 3), but this is {pixels.dtype} {pixels.shape}.")
    image = Image.fromarray(pixels)
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    file = BytesIO()
    # 256 colours are enough at this size and make the page a third as large.
    image.quantize(256, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return b64encode(file.getvalue()).decode()
