"""What a page says of where runs lose their targets: charts of survival and of the ladder, run beside run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from siglum.pages.charts import Chart, ShareSeries
from siglum.pages.document import Document, own_rung, token_survival_of
from siglum.pages.names import colour_run, in_order
from siglum.pages.render import percent, render

RUNG_COLOURS = {
    "teacher": "dense",
    "oracle": "scan",
    "geometry": "geometry",
    "decoder": "genius",
    "fused": "pro",
    "look-ahead": "spare0",
}
"""The usual rungs in order, and their colours by the theme's names; a scorer of one's own comes after them."""


@dataclass(frozen=True, slots=True)
class DiagnosedRun:
    """A run with a diagnosis, in its colour."""

    place: int
    name: str
    diagnosis: Mapping[str, Any]
    """What `siglum.measure.diagnose` returns."""
    token_survival: Mapping[str, Any]

    @property
    def colour(self) -> str:
        """Its colour as CSS."""
        return colour_run(self.place)

    @property
    def key(self) -> tuple[str, str]:
        """Its name and colour."""
        return self.name, self.colour

    @property
    def levels(self) -> list[int]:
        """Its levels; 0 is the modality token."""
        return [level["level"] for level in self.diagnosis["levels"]]

    @property
    def worst(self) -> tuple[int, float] | None:
        """The level at which its own search loses most, and how much; None where it loses nothing."""
        alive = own_rung(self.diagnosis)["survival"]
        losses = [before - after for before, after in zip([1.0, *alive], alive, strict=False)]
        return (self.levels[losses.index(max(losses))], max(losses)) if max(losses) > 0 else None

    @property
    def ladder(self) -> Chart:
        """Every rung of its ladder, level by level."""
        told = self.diagnosis
        rungs = [
            ShareSeries(rung["rung"], rung["survival"], f"var(--{RUNG_COLOURS.get(rung['rung'], 'spare2')})", marker)
            for marker, rung in enumerate(told["ladder"])
        ]
        chance = ShareSeries("chance", told["ladder"][0]["chance"], "var(--muted)", reference=True)
        pool = ShareSeries("pool", own_rung(told)["leaves"], "var(--spare1)", reference=True)
        return _lines(f"The ladder of {self.name}", self.levels, [*rungs, chance, pool])

    def along(self, values: Sequence[float], ticks: Sequence[int]) -> list[float | None]:
        """Return values by level at the places of all levels."""
        by_level = dict(zip(self.levels, values, strict=True))
        return [by_level.get(tick) for tick in ticks]


@dataclass(frozen=True, slots=True)
class Losses:
    """The section of losses."""

    runs: Sequence[DiagnosedRun]

    @property
    def token(self) -> Chart:
        """Token survival under the oracle, with chance; the modality token is no codeword and is left out."""
        curves = [(run, run.token_survival) for run in self.runs]
        ticks = list(range(1, 1 + max(len(curve["survival"]) for _, curve in curves)))
        series = [ShareSeries(run.name, curve["survival"], run.colour, run.place) for run, curve in curves]
        chances = _chances([(run, curve["chance"]) for run, curve in curves])
        return _lines("Token survival", ticks, [*series, *chances])

    @property
    def beam(self) -> int | str:
        """How many codes of a level that looks at."""
        beams = {run.token_survival["beam"] for run in self.runs}
        return beams.pop() if len(beams) == 1 else "B"

    @property
    def in_beam(self) -> Chart:
        """The targets left in each run's own beam, with chance."""
        chances = [[level["prefix_chance"] for level in run.diagnosis["levels"]] for run in self.runs]
        pairs = zip(self.runs, chances, strict=True)
        blind = _chances([(run, run.along(values, self._ticks)) for run, values in pairs])
        return _lines("Targets in the beam", self._ticks, [*self._curves("survival"), *blind])

    @property
    def under_beam(self) -> Chart:
        """How much of the pool each run's own beam still holds."""
        return _lines("The pool under the beam", self._ticks, self._curves("leaves"))

    @property
    def ends(self) -> Chart:
        """For every rung the share of targets that reach the last level, run by run."""
        ends = [{rung["rung"]: rung["survival"][-1] for rung in run.diagnosis["ladder"]} for run in self.runs]
        names = in_order((name for row in ends for name in row), RUNG_COLOURS)
        pairs = zip(self.runs, ends, strict=True)
        rows = [ShareSeries(run.name, [row.get(name) for name in names], run.colour) for run, row in pairs]
        return Chart(names, rows, "Targets that reach the last level, by rung and run")

    @property
    def _ticks(self) -> list[int]:
        return sorted({level for run in self.runs for level in run.levels})

    def _curves(self, key: str) -> list[ShareSeries]:
        """Return one line a run, of its own search."""
        rows = [run.along(own_rung(run.diagnosis)[key], self._ticks) for run in self.runs]
        return [ShareSeries(run.name, row, run.colour, run.place) for run, row in zip(self.runs, rows, strict=True)]


def find_losses(document: Document) -> Losses | None:
    """Return the section of losses; None where no run has a tokenizer."""
    told = [
        DiagnosedRun(place, run["name"], run["diagnosis"], run["token_survival"])
        for place, run in enumerate(document["runs"])
        if run["diagnosis"]
    ]
    return Losses(told) if told else None


def render_diagnosis(diagnosis: Mapping[str, Any], name: str) -> str:
    """Return the page of what `siglum.measure.diagnose` found in a run of this name."""
    run = DiagnosedRun(0, name, diagnosis, token_survival_of(diagnosis))
    return render("diagnose.html.j2", name=name, told=diagnosis, rung=own_rung(diagnosis), losses=Losses([run]))


def _chances(rows: Sequence[tuple[DiagnosedRun, Sequence[float | None]]]) -> list[ShareSeries]:
    """Return the lines of chance of runs, one for all runs that share it."""
    groups: dict[tuple[float | None, ...], list[DiagnosedRun]] = {}
    for run, values in rows:
        groups.setdefault(tuple(values), []).append(run)
    if len(groups) == 1:
        return [ShareSeries("chance", next(iter(groups)), "var(--muted)", reference=True)]
    return [
        ShareSeries(f"chance {run.name}" + (f" +{len(others)}" if others else ""), shared, run.colour, reference=True)
        for shared, (run, *others) in groups.items()
    ]


def _lines(title: str, ticks: Sequence[int], series: Sequence[ShareSeries]) -> Chart:
    ends = []
    for row in series:
        known = [value for value in row.values if value is not None]
        ends.append(f"{row.label} {percent(known[0])} to {percent(known[-1])} %")
    axis = "level" if 0 not in ticks else "level, after M for the modality token"
    return Chart([str(tick or "M") for tick in ticks], series, f"{title}, first to last: {'; '.join(ends)}", axis)
