"""An explanation as one HTML page that needs nothing beside itself: the beam drawn as a tree, and its numbers.

Every level is a row of the tree, best prefix first: the few best, the target, and the last one kept, behind which the
beam cuts. Prefixes in between are drawn as one dot; the path of the target is the thick line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from html import escape

from siglum.data.pictures import PictureError, load_picture
from siglum.measure.explain import Explanation, Level, Prefix, name_part, tell
from siglum.measure.page import encode_png, render_page, render_rows, render_table
from siglum.types import Item, Modality, Query

BEST = 3
"""Best prefixes of a level that are drawn, beside the target and the last one kept."""
PICTURE = 96
"""Pixels a side of an embedded picture."""
WIDTH, GUTTER, BOX, DOT, GAP = 446, 52, 58, 30, 6
"""Units across: small enough that the text can still be read on a phone."""
ROOT, CODES, SHOT, ROOM = 26, 50, 50, 50
"""Units down: the query, a box without its picture, the picture, and the room for the lines between two rows."""
KINDS = {Modality.IMAGE: "image", Modality.TEXT: "text", Modality.IMAGE_TEXT: "both"}
QUERY = "the query"
CSS = """
.tree svg{max-width:680px}
.tree text{font-size:12px;fill:var(--ink);text-anchor:middle}.tree .quiet{font-size:10.5px;fill:var(--muted)}
.tree .code{font-size:14px;font-weight:650}.tree .side{text-anchor:start}.tree .word{font-size:11px;font-weight:650}
.tree .box{fill:var(--card);stroke:var(--muted);stroke-width:1}.tree .line{fill:none;stroke:var(--muted);opacity:.55}
.tree .dot{fill:var(--muted)}.tree .cut{stroke:var(--bad);stroke-width:1.6;stroke-dasharray:3 3}
.tree .mine .box{stroke:var(--pro);stroke-width:2.6}.tree .line.mine{stroke:var(--pro);stroke-width:2.8;opacity:1}
.tree .fell .box{stroke:var(--bad);stroke-width:2.6;stroke-dasharray:5 3}
.tree .line.fell{stroke:var(--bad);stroke-width:2.8;opacity:1}
.tree .out{opacity:.72}.tree .out .box{stroke:var(--bad);stroke-dasharray:2 3}
.tree .line.out{stroke:var(--bad);stroke-width:1.4;stroke-dasharray:2 3;opacity:.8}
.tree .words{margin:0;font-size:8px;line-height:1.22;color:var(--muted);overflow-wrap:anywhere}
.tree .word{paint-order:stroke;stroke:var(--card);stroke-width:4px}
.tree .bad{fill:var(--bad)}.tree .good{fill:var(--good)}
.asked{display:grid;gap:14px;grid-template-columns:repeat(auto-fit,minmax(min(100%,260px),1fr));margin:26px 0 16px}
.asked .thing{background:var(--card)}.shot{width:96px;height:96px;border-radius:6px;flex:none}
.hits .thing{background:var(--card)}.under td{vertical-align:middle}
.under .ids{text-align:left;min-width:250px;white-space:normal}
.under .ids span{display:inline-flex;align-items:center;gap:5px;margin:2px 10px 2px 0;font-size:.8rem}
.under .shot{width:38px;height:38px}.under tr.mine th,.under tr.mine td{font-weight:650}
.under tr.gone td,.under tr.gone th{color:var(--bad)}
@media(max-width:720px){.tree{padding:10px 4px}}
"""


@dataclass(frozen=True, slots=True)
class _Spot:
    """One thing in a row of the tree: a prefix, or a dot for all prefixes from one rank to another."""

    x: float
    low: int
    high: int
    prefix: Prefix | None = None


class _Pictures:
    """Pictures by name, embedded once each and shown wherever they are wanted."""

    def __init__(self, things: Mapping[str, Item | Query]) -> None:
        self.number: dict[str, int] = {}
        self.encoded: list[str] = []
        for name, thing in things.items():
            # A picture that cannot be read is not shown.
            with suppress(PictureError):
                if thing.image is not None:
                    self.encoded.append(encode_png(load_picture(thing.image, PICTURE)))
                    self.number[name] = len(self.encoded) - 1

    def show(self, name: str) -> str:
        """Return the picture as HTML, or nothing where there is none."""
        if name not in self.number:
            return ""
        head = f'<svg class="shot" viewBox="0 0 {PICTURE} {PICTURE}" role="img" aria-label="picture of {escape(name)}">'
        return f'{head}<use href="#picture{self.number[name]}"/></svg>'

    def face(self, name: str, item: Item) -> str:
        """Return the picture of an item, or its words, as SVG for a box of the tree; nothing where it has neither."""
        if name in self.number:
            return f'<use href="#picture{self.number[name]}" transform="scale({SHOT / PICTURE:.4f})"/>'
        if not item.text:
            return ""
        size = f'width="{SHOT}" height="{SHOT}"'
        return f'<foreignObject {size}><p class="words">{escape(item.text)}</p></foreignObject>'

    def define(self) -> str:
        """Return the pictures themselves."""
        size = f'width="{PICTURE}" height="{PICTURE}"'
        shots = "".join(
            f'<image id="picture{number}" {size} href="data:image/png;base64,{png}"/>'
            for number, png in enumerate(self.encoded)
        )
        return f'<svg width="0" height="0" style="position:absolute" aria-hidden="true"><defs>{shots}</defs></svg>'


def render_explanation(explanation: Explanation, query: Query, items: Mapping[str, Item], title: str) -> str:
    """Return the page; `items` are those of the examples and hits that are known, with their texts and pictures."""
    pictures = _Pictures({**items, QUERY: query})
    first, *rest = tell(explanation)
    head = f'<h1>{escape(title)}</h1><p class="finding">{escape(first)}</p><p class="lead">{escape(" ".join(rest))}</p>'
    faces = {name: pictures.face(name, item) for name, item in items.items()}
    tree = f'<figure class="tree">{draw_tree(explanation, faces)}</figure>'
    sections = {
        "The beam": f"<p>{_legend(explanation)}</p>{tree}",
        "Level by level": _table(explanation),
        "The prefixes it met": _prefixes(explanation, pictures),
        "What was found": _hits(explanation, items, pictures),
    }
    body = [pictures.define(), f"<header>{head}</header>", _asked(explanation, query, items, pictures)]
    body += [f"<section><h2>{name}</h2>{inner}</section>" for name, inner in sections.items()]
    return render_page(title, "\n".join(body)).replace("</style>", f"{CSS}</style>", 1)


def draw_tree(explanation: Explanation, faces: Mapping[str, str] | None = None) -> str:
    """Return the beam as SVG; `faces` are what stands for an item in a box, SHOT units a side, by id."""
    faces, fall = faces or {}, explanation.fall
    shown = any(faces.get(name) for level in explanation.levels for p in _chosen(level) for name in p.examples)
    box = CODES + SHOT * shown
    before, bottom = [_Spot(GUTTER + BOX / 2, 0, 0)], float(ROOT)
    parts = [f'<text class="word" x="{before[0].x:.1f}" y="{bottom - 8:.0f}">query</text>']
    for level in explanation.levels:
        top, kind = bottom + ROOM, "mine" if level.target.kept else "fell" if level is fall else "out"
        spots = _lay_out(level, kind)
        lines = [_draw_line(level, kind, spot, before, bottom, top) for spot in spots if spot.prefix is not None]
        parts += sorted(lines, key=lambda line: kind in line)  # the target's line lies on top
        parts += _draw_row(level, kind, spots, top, box, faces)
        before, bottom = spots, top + box
        if level is (fall or explanation.levels[-1]):
            x = next(spot.x for spot in spots if spot.prefix == level.target)
            word, mood = ("✗ falls here", "bad") if fall else (f"✓ rank {explanation.rank}", "good")
            fate = _text(min(x, WIDTH - 38), bottom + 15, word, f"word {mood}")
    parts.append(fate)  # last, so that no line lies on it
    head = f'<svg viewBox="0 0 {WIDTH} {bottom + 24:.0f}" role="img" aria-label="{escape(" ".join(tell(explanation)))}"'
    return f'{head} font-family="inherit">{"".join(parts)}</svg>'


def _chosen(level: Level) -> list[Prefix]:
    """Return the prefixes of a level that are drawn."""
    return list({prefix.codes: prefix for prefix in (*level.best[:BEST], level.last, level.target)}.values())


def _lay_out(level: Level, kind: str) -> list[_Spot]:
    """Place the prefixes of a row, best first, with a dot where some are left out."""
    spots, x, seen = [], float(GUTTER), 0

    def is_out(prefix: Prefix) -> bool:
        return kind == "out" and prefix.codes == level.target.codes

    # A target that is out stands before the prefix whose rank it would take, and takes none.
    for prefix in sorted(_chosen(level), key=lambda one: (one.rank, not is_out(one))):
        if prefix.rank - 1 > seen:
            spots.append(_Spot(x + DOT / 2, seen + 1, prefix.rank - 1))
            x += DOT + GAP
        spots.append(_Spot(x + BOX / 2, prefix.rank, prefix.rank, prefix))
        x += BOX + GAP
        seen = prefix.rank - is_out(prefix)
    return spots


def _draw_line(level: Level, kind: str, spot: _Spot, before: list[_Spot], top: float, bottom: float) -> str:
    """Draw the line from a prefix's parent, or from the dot that stands for it."""
    assert spot.prefix is not None
    codes, rank = spot.prefix.codes, spot.prefix.parent
    same = [one for one in before if one.prefix is not None and one.prefix.codes == codes[:-1]]
    dots = [one for one in before if one.prefix is None]
    parent = min(same or dots, key=lambda one: max(one.low - rank, rank - one.high))
    middle = (top + bottom) / 2
    path = f"M{parent.x:.1f} {top:.1f}C{parent.x:.1f} {middle:.1f} {spot.x:.1f} {middle:.1f} {spot.x:.1f} {bottom:.1f}"
    return f'<path class="line {kind if codes == level.target.codes else "other"}" d="{path}"/>'


def _draw_row(
    level: Level, kind: str, spots: list[_Spot], top: float, box: int, faces: Mapping[str, str]
) -> Iterator[str]:
    yield _text(2, top + 14, str(level.level) if level.level else "M", "code side")
    yield _text(2, top + 29, f"keeps {level.kept}", "quiet side")
    yield _text(2, top + 41, f"of {level.candidates:,}", "quiet side")
    for spot in spots:
        if spot.prefix is None:
            yield f'<circle class="dot" cx="{spot.x:.1f}" cy="{top + box - 4:.1f}" r="4"/>'
            yield _text(spot.x, top + box - 14, f"+{_brief(spot.high - spot.low + 1)}", "quiet")
            continue
        is_target = spot.prefix.codes == level.target.codes
        yield _draw_box(level, spot.prefix, spot.x - BOX / 2, top, box, kind if is_target else "other", faces)
        if spot.prefix.codes == level.last.codes and level.candidates > level.kept:
            yield f'<path class="cut" d="M{spot.x + (BOX + GAP) / 2:.1f} {top - 6:.1f}v{box + 12}"/>'


def _draw_box(level: Level, prefix: Prefix, x: float, y: float, box: int, kind: str, faces: Mapping[str, str]) -> str:
    face = next((faces[name] for name in prefix.examples if faces.get(name)), "")
    image = f'<g transform="translate({x + 4:.1f} {y + 4:.1f})">{face}</g>' if face else ""
    middle, foot = x + BOX / 2, y + box
    return (
        f'<g class="{kind}"><title>{escape(_hint(prefix))}</title>'
        f'<rect class="box" x="{x:.1f}" y="{y:.1f}" width="{BOX}" height="{box}" rx="7"/>{image}'
        f"{_text(middle, foot - 32, f'rank {_brief(prefix.rank)}', 'quiet')}"
        f"{_text(middle, foot - 18, _name(level, prefix), 'code')}"
        f"{_text(middle, foot - 6, _number(prefix.score), 'quiet')}</g>"
    )


def _text(x: float, y: float, words: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def _name(level: Level, prefix: Prefix) -> str:
    """Return the last code of a prefix; the modality token in words."""
    return str(prefix.codes[-1]) if level.level else KINDS[Modality(prefix.codes[-1])]


def _hint(prefix: Prefix) -> str:
    parts = ", ".join(f"{name_part(name)} {_number(value)}" for name, value in prefix.parts.items())
    return f"{_spell(prefix)}: score {_number(prefix.score)} ({parts}), {_count(prefix.items, 'item')}"


def _spell(prefix: Prefix) -> str:
    return "-".join(map(str, prefix.codes))


def _number(value: float) -> str:
    """Write a score with two digits and a real minus.

    >>> _number(-1.5)
    '−1.50'
    """
    return f"{value:.2f}".replace("-", "−")


def _brief(number: int) -> str:
    """Write a count in little room.

    >>> _brief(950), _brief(12_345)
    ('950', '12k')
    """
    return str(number) if number < 1000 else f"{number / 1000:.0f}k"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _legend(explanation: Explanation) -> str:
    words = (
        "Every row is a level, its best prefix first, with rank, code and score; a dot stands for those left out."
        " The thick line is the way of the target, and the dashed bar is where the beam cuts."
    )
    fall = explanation.fall
    if fall is not None and fall is not explanation.levels[-1]:
        words += " Below its fall the target is dotted: where it would have stood."
    return words


def _asked(explanation: Explanation, query: Query, items: Mapping[str, Item], pictures: _Pictures) -> str:
    """Show the query and the target."""
    words = " ".join(part for part in (query.instruction, query.text) if part)
    known = items.get(explanation.target)
    code = "-".join(map(str, explanation.codes))
    cards = [
        ("Query", query.id, words, pictures.show(QUERY)),
        ("Target", f"{explanation.target} · {code}", (known and known.text) or "", pictures.show(explanation.target)),
    ]
    return f'<section class="asked">{"".join(_card(*card) for card in cards)}</section>'


def _card(title: str, name: str, words: str, shot: str, kind: str = "") -> str:
    mark = f'<p class="mark"><b>{escape(title)}</b> <span class="id">{escape(name)}</span></p>'
    return f'<div class="thing {kind}">{mark}<div class="both">{shot}<p>{escape(words)}</p></div></div>'


def _table(explanation: Explanation) -> str:
    """Return the numbers of the target on its way."""
    parts = list(explanation.levels[0].target.parts)
    head = ["Level", "Code", "Rank", "Candidates", "In the pool", "Kept", "Score", "Last kept", *map(name_part, parts)]
    rows = []
    for level in explanation.levels:
        own, gaps = level.target, level.gap_parts
        counts = [f"{number:,}" for number in (own.rank, level.candidates, level.prefixes, level.kept)]
        scores = [f"{_number(own.score)} ({_signed(level.gap)})", _number(level.last.score)]
        scores += [f"{_number(own.parts[name])} ({_signed(gaps[name])})" for name in parts]
        rows.append([str(level.level) if level.level else "M", str(own.codes[-1]), *counts, *scores])
    caption = "The target on its way; in brackets what it has more or less than the last prefix kept"
    return render_rows(caption, head, rows)


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def _prefixes(explanation: Explanation, pictures: _Pictures) -> str:
    """Return the best prefixes of every level with items under them; the level that decided is unfolded."""
    decided = explanation.fall or explanation.levels[-1]
    folds = []
    for level in explanation.levels:
        told = {p.codes: p for p in (*level.best, level.last, level.target)}
        rows = "".join(_row(level, p, pictures) for p in sorted(told.values(), key=lambda p: (p.rank, p.kept)))
        names = ["Prefix", "Items", "Score", *map(name_part, level.target.parts)]
        head = '<th scope="col" class="corner">Rank</th>' + "".join(f'<th scope="col">{name}</th>' for name in names)
        caption = f"{_count(level.candidates, 'candidate')}, {level.kept} kept; {level.target.rank - 1} beat the target"
        table = render_table(caption, f'<tr>{head}<th scope="col" class="ids">such as</th></tr>', rows)
        name = level.name[0].upper() + level.name[1:]
        folds.append(f"<details{' open' * (level is decided)}><summary>{escape(name)}</summary>{table}</details>")
    return f'<div class="under">{"".join(folds)}</div>'


def _row(level: Level, prefix: Prefix, pictures: _Pictures) -> str:
    mine = prefix.codes == level.target.codes
    kind = " class=" + ('"mine"' if prefix.kept else '"mine gone"') if mine else ""
    numbers = [_spell(prefix), f"{prefix.items:,}", _number(prefix.score), *map(_number, prefix.parts.values())]
    some = "".join(f"<span>{pictures.show(name)}{escape(name)}</span>" for name in prefix.examples)
    cells = "".join(f"<td>{cell}</td>" for cell in numbers)
    return f'<tr{kind}><th scope="row">{prefix.rank:,}</th>{cells}<td class="ids">{some}</td></tr>'


def _hits(explanation: Explanation, items: Mapping[str, Item], pictures: _Pictures) -> str:
    """Show the first results."""
    cards = []
    for hit in explanation.hits:
        item = items.get(hit.item_id)
        kind = "right" if hit.item_id == explanation.target else ""
        shot = pictures.show(hit.item_id)
        cards.append(f"<li>{_card(str(hit.rank), hit.item_id, (item and item.text) or '', shot, kind)}</li>")
    return f'<ol class="hits">{"".join(cards)}</ol>'
