"""Pages from Jinja2 templates: what a page looks like stands in `templates`, and Python hands it typed data.

Everything is escaped unless a template says otherwise, and a name that a template does not find is an error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from itertools import groupby
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from siglum.measure.explain import name_group, spell
from siglum.pages.names import colour_run, name_system, name_task

MISSING = "–"


def render(template: str, **data: object) -> str:
    """Return the page that a template makes of its data; equal data gives equal bytes."""
    return environment().get_template(template).render(data)


@cache
def environment() -> Environment:
    """Return the templates with their filters."""
    made = Environment(
        loader=PackageLoader("siglum.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    filters = (percent, points, number, count, brief, setting, sentence, inline, listed, breakable)
    made.filters |= {one.__name__: one for one in (*filters, name_system, name_task, colour_run, name_group, spell)}
    return made


def percent(share: float | None) -> str:
    """Write a share in per cent with one digit.

    >>> percent(0.7851), percent(None)
    ('78.5', '–')
    """
    return MISSING if share is None else f"{100 * share:.1f}"


def points(value: float, sign: str = "+") -> str:
    """Write a difference of shares in points, with a real minus.

    >>> points(0.0123), points(-0.004), points(-1e-9), points(0.01, sign="-")
    ('+1.2', '−0.4', '0.0', '1.0')
    """
    text = f"{100 * value:{sign}.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", "−")


def number(value: float | None, digits: int = 2, sign: str = "-") -> str:
    """Write a number with a real minus.

    >>> number(-1.5), number(0.25, 3, "+"), number(None)
    ('−1.50', '+0.250', '–')
    """
    return MISSING if value is None else f"{value:{sign},.{digits}f}".replace("-", "−")


def count(value: int, noun: str = "") -> str:
    """Write a count, with its noun if one is given.

    >>> count(1200), count(1, "item"), count(3, "item")
    ('1,200', '1 item', '3 items')
    """
    return f"{value:,}" + (f" {noun}{'' if value == 1 else 's'}" if noun else "")


def brief(value: int) -> str:
    """Write a count in little room.

    >>> brief(950), brief(12_345)
    ('950', '12k')
    """
    return str(value) if value < 1000 else f"{value / 1000:.0f}k"


def setting(value: Any) -> str:
    """Write a setting: repeated numbers as runs, nothing as a dash.

    >>> setting([64, 64, 128]), setting(0.05), setting(True)
    ('2 × 64, 128', '0.05', 'yes')
    """
    if isinstance(value, list | tuple):
        counted = [(one, len(list(run))) for one, run in groupby(value)]
        return ", ".join(f"{many} × {one}" if many > 1 else str(one) for one, many in counted)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value if value not in (None, "") else MISSING)


def inline(text: str) -> Markup:
    """Return words in which `code` is code and **this** is bold.

    >>> inline("**one** & `two`")
    Markup('<b>one</b> &amp; <code>two</code>')
    """
    words = re.sub(r"`(.+?)`", r"<code>\1</code>", str(escape(text)))
    return Markup(re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", words))


def listed(words: Sequence[str]) -> str:
    """Return words as a sentence lists them.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def sentence(text: str) -> Markup:
    """Return words as a sentence: a capital first, real minuses, and no break before a per cent sign.

    >>> sentence("use `siglum index`")
    Markup('Use <code>siglum index</code>')
    """
    words = str(escape(text)).strip()
    words = re.sub(r"(?<= )-(?=\d)", "−", words[:1].upper() + words[1:]).replace(" %", "\u00a0%")
    return inline(Markup(words))


def breakable(name: str) -> Markup:
    """Return a dotted name that may break at its joints, and nowhere else.

    >>> breakable("search.beam")
    Markup('search.<wbr/>beam')
    """
    return Markup(re.sub(r"([._])", r"\1<wbr/>", str(escape(name))))
