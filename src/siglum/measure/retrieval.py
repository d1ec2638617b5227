"""Retrieval measures, computed by ir-measures, and their mean over seeds.

M-BEIR, GENIUS and the papers that follow them report `Recall@k` meaning "any relevant item among the first k".
That is `success@k` here; `recall@k` here is true recall, the share of a query's relevant items among the first k.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from siglum.data.trec import Qrels, Run
from siglum.types import SiglumError

MEASURES = ("Success@1", "Success@5", "Success@10", "R@10", "nDCG@10", "RR@10")
"""The usual measures, in the spelling of ir-measures."""

NAMES = {"Success": "success", "R": "recall", "nDCG": "ndcg", "RR": "mrr"}
"""Our name of each measure that can be asked for."""


def evaluate(run: Run, qrels: Qrels, measures: Sequence[str] = MEASURES) -> dict[str, float]:
    """Return every measure's mean over the queries of the qrels, from 0 to 1; a query without results counts 0.

    Results count in the order of their list, whatever their scores.

    >>> evaluate({"q": [("b", 2.0), ("a", 1.0)]}, {"q": {"a": 1}, "p": {"b": 1}}, ("Success@5", "RR@10"))
    {'success@5': 0.5, 'mrr@10': 0.25}
    """
    values = per_query(run, qrels, measures)
    return {name: math.fsum(by_query.values()) / len(by_query) for name, by_query in values.items()}


def per_query(run: Run, qrels: Qrels, measures: Sequence[str] = MEASURES) -> dict[str, dict[str, float]]:
    """Return every measure of every query of the qrels, in their order; see `evaluate`."""
    import ir_measures

    names = {measure: our_name(measure) for measure in measures}
    if not qrels:
        raise SiglumError("the qrels are empty, so there is nothing to measure.")
    parsed = {ir_measures.parse_measure(measure): names[measure] for measure in measures}
    values = {name: dict.fromkeys(qrels, 0.0) for name in names.values()}
    for found in ir_measures.iter_calc(list(parsed), qrels, _by_place(run, qrels)):
        values[parsed[found.measure]][found.query_id] = float(found.value)
    return values


def our_name(measure: str) -> str:
    """Return our name of a measure given in the spelling of ir-measures, refusing one that is not known.

    >>> our_name("RR@10")
    'mrr@10'
    """
    match = re.fullmatch(r"(\w+)@([1-9][0-9]*)", measure)
    if match is None or match[1] not in NAMES:
        raise SiglumError(
            f"the measure is {measure!r}, but must be one of: {', '.join(f'{name}@k' for name in NAMES)}."
        )
    return f"{NAMES[match[1]]}@{match[2]}"


@dataclass(frozen=True, slots=True)
class Summary:
    """Mean of n values with its spread; with one value the spread is unknown (nan)."""

    mean: float
    std: float
    """Sample standard deviation (n - 1 in the denominator)."""
    half_width: float
    """Half of the 95 % confidence interval of the mean, 1.96 std / sqrt(n)."""
    n: int

    def show(self, scale: float = 1.0) -> str:
        """Return mean and half width, both times `scale`; 100 turns shares into points.

        >>> summarise([0.454, 0.459, 0.461]).show(100)
        '45.8 ± .41'
        """
        mean = f"{self.mean * scale:.1f}"
        if math.isnan(self.half_width):
            return mean
        return f"{mean} ± {f'{self.half_width * scale:.2f}'.removeprefix('0')}"

    def __str__(self) -> str:
        """Return mean and half width as they are."""
        return self.show()


def summarise(values: Sequence[float]) -> Summary:
    """Return mean, sample standard deviation and 95 % half width of a measure over seeds."""
    n = len(values)
    if n == 0:
        raise SiglumError("there are no values to summarise; give at least one.")
    mean = math.fsum(values) / n
    std = float(np.std(np.asarray(values, float), ddof=1)) if n > 1 else math.nan
    return Summary(mean, std, 1.96 * std / math.sqrt(n), n)


def _by_place(run: Run, qrels: Qrels) -> dict[str, dict[str, float]]:
    """Return the run with scores that only say the place: the tools behind ir-measures break ties in different ways."""
    scored = {}
    for query, results in run.items():
        if query in qrels:
            scored[query] = {item: float(len(results) - place) for place, (item, _) in enumerate(results)}
            if len(scored[query]) < len(results):
                raise SiglumError(f"the run of query {query!r} lists an item twice; drop one of them.")
    return scored
