"""Building blocks of the page about runs: paints, folds, numbers with intervals, and tables in groups of columns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any

from siglum.measure.page import MISSING, percent, render_table

PAINTS = ("pro", "genius", "geometry", "pro_without_pd", "spare0", "spare1", "scan", "spare2")
"""Names of the page's colours, in the order in which runs take them."""
CSS = """
.finding,.lead{overflow-wrap:anywhere}
.verdict{border-left:4px solid var(--own)}.verdict p+p{margin-top:8px}.card h3{overflow-wrap:anywhere}
.figures .card{border-top:4px solid var(--own,var(--line))}.figures .name{font-weight:650;overflow-wrap:anywhere}
.up{color:var(--good)}.down{color:var(--bad)}
tr.changed th,tr.changed td{background:color-mix(in srgb,var(--spare0) 16%,var(--card))}
.settings th{font-weight:500}
code,.command{font:.88em/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace;
overflow-wrap:anywhere}
.command{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:12px 14px;margin:12px 0;
max-width:none}
.drawn{background:#fff}.drawn img{display:block;width:100%;max-width:900px;height:auto;margin:6px auto 0}
.drawn figcaption b{color:#1b1f24}
.example .tag .place{font-weight:400;color:var(--muted)}
.thing img{width:96px;height:auto}.hits.pictures{grid-template-columns:repeat(5,minmax(0,1fr))}
.pictures .id{display:block}.missing{border-left:4px solid var(--bad)}
summary{overflow-wrap:anywhere}.experiment ul{margin:6px 0;padding-left:1.2em}
@media(max-width:720px){.hits.pictures{grid-template-columns:repeat(3,minmax(0,1fr))}
.figures{grid-template-columns:1fr}.settings td{min-width:7.5em}
.settings tbody th{max-width:46vw;white-space:normal}}
@media print{:root{color-scheme:light;--page:#fff;--card:#fff;--ink:#1b1f24;--muted:#5b6470;--line:#d9dde3;
--good:#007a59;--bad:#c04f00;--dense:#7a828e;--scan:#56b4e9;--geometry:#009e73;--genius:#d55e00;--pro:#0072b2;
--pro_without_pd:#b65c8e;--spare0:#b98300;--spare1:#4b4fa3;--spare2:#000}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}main{padding:0;max-width:none}
details::details-content{content-visibility:visible;display:block;height:auto}
.charts{grid-template-columns:1fr 1fr}.scroll{overflow:visible}table{font-size:.68rem}th,td{padding:3px 4px}
.first,thead th[colspan]{padding-left:8px}tr,.example,figure{break-inside:avoid}h2,h3{break-after:avoid}}
"""


def paint(place: int) -> str:
    """Return the colour of a run by its place on the command line.

    >>> paint(0), paint(9)
    ('var(--pro)', 'var(--genius)')
    """
    return f"var(--{PAINTS[place % len(PAINTS)]})"


def swatch(name: str, colour: str) -> str:
    """Return a name behind a patch of its colour."""
    return f'<span class="swatch" style="background:{colour}"></span>{escape(name)}'


def sentence(text: str) -> str:
    """Return a sentence as HTML: a capital first, `code` as code, and no line break before a per cent sign.

    >>> sentence("use `siglum index`")
    'Use <code>siglum index</code>'
    """
    words = escape(text[:1].upper() + text[1:]).replace(" %", "\u00a0%")
    return re.sub(r"`(.+?)`", r"<code>\1</code>", words)


def fold(summary: str, inner: str) -> str:
    """Return something that opens on a click; nothing where there is nothing inside."""
    return f"<details><summary>{escape(summary)}</summary>{inner}</details>" if inner else ""


def section(title: str, *inner: str) -> str:
    """Return a section under its head; nothing where all of it is empty."""
    body = "".join(inner)
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""


def points(value: float) -> str:
    """Write a difference of shares in points, with a real minus.

    >>> points(0.0123), points(-0.004), points(-1e-9)
    ('+1.2', '−0.4', '0.0')
    """
    text = f"{100 * value:+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", "−")


def show_difference(found: Mapping[str, float] | None) -> str:
    """Write a difference with its interval, marked where the interval leaves no doubt of its sign, as HTML.

    >>> show_difference({"difference": 0.02, "low": 0.01, "high": 0.03})
    '<span class="up">▲ +2.0</span> [+1.0, +3.0]'
    """
    if found is None:
        return MISSING
    text, interval = points(found["difference"]), f"[{points(found['low'])}, {points(found['high'])}]"
    if found["low"] > 0:
        text = f'<span class="up">▲ {text}</span>'
    elif found["high"] < 0:
        text = f'<span class="down">▼ {text}</span>'
    return f"{text} {interval}"


def best_bold(values: Sequence[float | None]) -> list[str]:
    """Write shares in per cent, the best in bold unless all are alike: compared as shown, so that equals share it.

    >>> best_bold([0.5, None, 0.25]), best_bold([0.5, 0.5])
    (['<b>50.0</b>', '–', '25.0'], ['50.0', '50.0'])
    """
    shown = [percent(value) for value in values]
    known = {float(text) for text in shown if text != MISSING}
    best = f"{max(known):.1f}" if len(known) > 1 else ""
    return [f"<b>{text}</b>" if text == best else text for text in shown]


def render_grid(
    caption: str,
    corner: str,
    groups: Sequence[tuple[str, Sequence[str]]],
    rows: Sequence[tuple[str, Sequence[str], str]],
) -> str:
    """Return a table of groups of columns (head in HTML, heads below); rows are name and cells in HTML, and a class."""
    top = "".join(f'<th scope="colgroup" colspan="{len(heads)}">{name}</th>' for name, heads in groups)
    first = {sum(len(heads) for _, heads in groups[:place]) for place in range(len(groups))}

    def start(place: int) -> str:
        return ' class="first"' if place in first else ""

    heads = [head for _, below in groups for head in below]
    below = "".join(f'<th scope="col"{start(place)}>{escape(head)}</th>' for place, head in enumerate(heads))
    body = "".join(
        f'<tr class="{kind}"><th scope="row">{name}</th>'
        + "".join(f"<td{start(place)}>{cell}</td>" for place, cell in enumerate(cells))
        + "</tr>"
        for name, cells, kind in rows
    )
    head = f'<tr><th scope="col" rowspan="2" class="corner">{escape(corner)}</th>{top}</tr><tr>{below}</tr>'
    return render_table(caption, head, body)


def show_setting(value: Any) -> str:
    """Write a setting: repeated numbers as runs, nothing as a dash.

    >>> show_setting([64, 64, 128]), show_setting(0.05), show_setting(True)
    ('2 × 64, 128', '0.05', 'yes')
    """
    if isinstance(value, list | tuple):
        counted = [(one, len(list(run))) for one, run in groupby(value)]
        return ", ".join(f"{many} × {one}" if many > 1 else str(one) for one, many in counted)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value if value not in (None, "") else MISSING)
