"""Tables of results, as Markdown for people and as LaTeX (booktabs) for papers.

Cells are text; `**x**` is bold in both. LaTeX needs the packages booktabs and, for wide tables, graphicx.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from siglum.measure.retrieval import summarise
from siglum.types import SiglumError

SPECIAL: dict[str, str | int | None] = {
    **{sign: "\\" + sign for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "→": r"$\to$",
    "×": r"$\times$",
    "²": r"$^2$",
    "−": r"$-$",
    "–": r"--",
    "τ": r"$\tau$",
    "λ": r"$\lambda$",
    "ω": r"$\omega$",
    "ε": r"$\varepsilon$",
    "ρ": r"$\rho$",
    "ℓ": r"$\ell$",
}
"""What LaTeX would misread, and signs its fonts may lack."""


@dataclass(slots=True)
class Table:
    """A table: unless told otherwise the first column is text, and the others are numbers set to the right."""

    name: str
    """One word, for labels."""
    title: str
    columns: list[str]
    rows: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Sentences below the table."""
    align: str = ""
    """One letter a column, as in LaTeX: l or r."""

    def __post_init__(self) -> None:
        """Refuse rows of another length than the head."""
        self.align = self.align or "l" + "r" * (len(self.columns) - 1)
        for row in self.rows:
            if len(row) != len(self.columns):
                raise SiglumError(f"table {self.name} has {len(self.columns)} columns, but a row of {len(row)} cells.")

    def markdown(self) -> str:
        """Return the table with its title and notes."""
        notes = [f"- {note}" for note in self.notes]
        return "\n".join([f"## {self.title}", "", *self.grid(), *([""] if notes else []), *notes, ""])

    def grid(self) -> list[str]:
        """Return the lines of the table alone, as Markdown aligned for the eye as well."""
        rows = [self.columns, *self.rows]
        width = [max(3, *(len(row[place]) for row in rows)) for place in range(len(self.columns))]
        rule = ["-" * w if side == "l" else "-" * (w - 1) + ":" for w, side in zip(width, self.align, strict=True)]
        return [_line(row, width, self.align) for row in (self.columns, rule, *self.rows)]

    def latex(self) -> str:
        """Return the table with its caption and label, scaled down where it is too wide."""
        head, *rows = [" & ".join(map(escape, row)) + r" \\" for row in (self.columns, *self.rows)]
        body = [
            rf"\begin{{tabular}}{{@{{}}{self.align}@{{}}}}",
            r"\toprule",
            head,
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
        ]
        if len(self.columns) > 6:
            body = [r"\resizebox{\textwidth}{!}{%", *body, "}"]
        notes = [rf"\par\smallskip\footnotesize {escape(' '.join(self.notes))}"] if self.notes else []
        caption = [rf"\caption{{{escape(self.title)}}}", rf"\label{{tab:{self.name}}}"]
        return "\n".join([r"\begin{table}[t]", r"\centering", *caption, *body, *notes, r"\end{table}", ""])


def _line(cells: Sequence[str], width: Sequence[int], align: str) -> str:
    sides = zip(cells, width, align, strict=True)
    return f"| {' | '.join(cell.ljust(w) if side == 'l' else cell.rjust(w) for cell, w, side in sides)} |"


def escape(text: str) -> str:
    r"""Return text as LaTeX.

    >>> escape("**46.2** ±.38 at 5 %")
    '\\textbf{46.2} $\\pm$.38 at 5 \\%'
    """
    return re.sub(r"\*\*(.+?)\*\*", r"\\textbf{\1}", text.translate(str.maketrans(SPECIAL)))


def percent(values: Sequence[float]) -> str:
    """Return the mean of shares over seeds in per cent, with its deviation where there are several.

    >>> percent([0.5]), percent([0.40, 0.42])
    ('50.0', '41.0 ±1.4')
    """
    found = summarise(values)
    return f"{100 * found.mean:.1f}" + (f" ±{100 * found.std:.1f}" if found.n > 1 else "")


def bold_best(rows: list[list[str]], places: Sequence[int], values: Sequence[Sequence[float]]) -> None:
    """Set the best cell of some columns in bold; `values` holds each row's numbers in the order of `places`."""
    for column, place in enumerate(places if rows else ()):
        best = max(range(len(rows)), key=lambda row: values[row][column])
        rows[best][place] = f"**{rows[best][place]}**"
