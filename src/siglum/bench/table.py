"""From the parts of a benchmark to its document and Markdown table: means over seeds, paired intervals, gaps.

All figures are of the test split. Shapes: S seeds, Q queries.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from siglum.bench.weigh import reciprocal_ranks
from siglum.files import read_json
from siglum.measure.retrieval import summarise

CUTS = (1, 5, 10)
ROUNDS = 2000
"""Draws of the bootstrap over queries."""
ORDER = (
    ("dense", "dense search in the fused space"),
    ("faiss_pq", "faiss product quantiser, exhaustive"),
    ("faiss_opq", "faiss rotated product quantiser, exhaustive"),
    ("faiss_rq", "faiss residual quantiser, exhaustive"),
    ("genius", "GENIUS: uniform vocabulary, decoder alone"),
    ("genius_half", "GENIUS, half the vocabulary"),
    ("genius_double", "GENIUS, double the vocabulary"),
    ("pd", "+ PD"),
    ("vs", "+ VS"),
    ("sf", "+ SF"),
    ("pd_vs", "+ PD + VS"),
    ("pd_sf", "+ PD + SF"),
    ("vs_sf", "+ VS + SF"),
    ("pro", "PRO: PD + VS + SF"),
    ("pro_scan", "PRO's codes, exhaustive scan"),
    ("pro_geometry", "PRO's codes, geometry in the beam"),
    ("best_dense", "best's fused space, dense"),
    ("scan", "best's codes, exhaustive scan"),
    ("geometry", "best's codes, geometry in the beam"),
    ("best_scan", "best's codes and query head, exhaustive scan"),
    ("best_decoder", "best, decoder and prior alone"),
    ("best", "best"),
)
"""Systems as the table shows them."""
MORE = ("genius", "pro", "best")
"""Systems in bold."""
TITLES = {"t2i": "Text to image (t2i)", "i2t": "Image to text (i2t)"}
Ranks = dict[str, dict[str, np.ndarray]]
"""system -> task -> ranks (S, Q)."""


def read_parts(paths: Iterable[Path]) -> tuple[Ranks, dict[str, Any]]:
    """Return all ranks, seeds in order, and what else the parts tell by unit and seed."""
    rows: dict[str, dict[str, dict[int, list[int]]]] = {}
    told: dict[str, Any] = {"validation": {}, "seconds": {}, "devices": {}}
    sizes: dict[str, list[float]] = {}
    for path in paths:
        part = read_json(path)
        for system, tasks in part["systems"].items():
            for task, ranks in tasks.items():
                rows.setdefault(system, {}).setdefault(task, {})[part["seed"]] = ranks
        for system, size in part["bytes"].items():
            sizes.setdefault(system, []).append(size)
        told["validation"].setdefault(part["unit"], {})[str(part["seed"])] = part.get("validation")
        told["seconds"].setdefault(part["unit"], {})[str(part["seed"])] = part["seconds"]
        told["devices"].setdefault(part["unit"], {})[str(part["seed"])] = part["device"]
    ranks = {
        system: {task: np.array([found[seed] for seed in sorted(found)]) for task, found in tasks.items()}
        for system, tasks in rows.items()
    }
    told["bytes"] = {system: float(np.mean(found)) for system, found in sizes.items()}
    return ranks, told


def measure(ranks_SQ: np.ndarray) -> dict[str, dict[str, float]]:
    """Return success@1, @5, @10 and mrr@10 with mean and deviation over seeds, as fractions."""
    found = {}
    for cut in CUTS:
        found[f"success@{cut}"] = ((ranks_SQ > 0) & (ranks_SQ <= cut)).mean(1)
    found["mrr@10"] = reciprocal_ranks(ranks_SQ).mean(1)
    return {name: _spread(values) for name, values in found.items()}


def _spread(values: np.ndarray) -> dict[str, float]:
    summary = summarise([float(value) for value in values])
    return {"mean": summary.mean, "std": 0.0 if len(values) < 2 else summary.std}


def paired_interval(left_SQ: np.ndarray, right_SQ: np.ndarray, seed: int = 0) -> dict[str, float]:
    """Return the difference of two per-query measures, mean over seeds, and its bootstrap interval over queries."""
    gap_Q = left_SQ.mean(0) - right_SQ.mean(0)
    draw = np.random.default_rng(seed)
    means = [gap_Q[draw.integers(0, len(gap_Q), len(gap_Q))].mean() for _ in range(ROUNDS)]
    low, high = np.quantile(means, (0.025, 0.975))
    return {"mean": float(gap_Q.mean()), "low": float(low), "high": float(high)}


def _hits(ranks_SQ: np.ndarray, cut: int) -> np.ndarray:
    return ((ranks_SQ > 0) & (ranks_SQ <= cut)).astype(float)


def summarise_ranks(ranks: Ranks, told: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    """Return the document of the benchmark."""
    tasks = sorted({task for found in ranks.values() for task in found}, reverse=True)
    document: dict[str, Any] = {
        **facts,
        "bytes_per_item": told["bytes"],
        "tasks": {t: {s: measure(found[t]) for s, found in ranks.items() if t in found} for t in tasks},
        "comparisons": {t: _compare({s: found[t] for s, found in ranks.items() if t in found}) for t in tasks},
        "validation": told["validation"],
        "seconds": told["seconds"],
        "devices": told["devices"],
    }
    return document


def _compare(ranks: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return paired intervals, shares of gaps closed, and how often decoder and geometry are right alone."""
    found: dict[str, Any] = {}
    if "pro" in ranks and "genius" in ranks:
        found["pro - genius"] = {
            f"success@{cut}": paired_interval(_hits(ranks["pro"], cut), _hits(ranks["genius"], cut)) for cut in CUTS
        }
    uniform = [name for name in ("genius", "genius_half", "genius_double") if name in ranks]
    if "dense" in ranks and "pro" in ranks and uniform:
        one = {name: float(_hits(ranks[name], 1).mean()) for name in ("dense", "pro", *uniform)}
        best = max(uniform, key=lambda name: one[name])
        for name, against in (("gap_closed", "genius"), ("gap_closed_to_best_uniform", best)):
            if against in one:
                gap = one["dense"] - one[against]
                found[name] = {"against": against, "share": (one["pro"] - one[against]) / gap if gap > 0 else None}
    if "best" in ranks:
        found |= _compare_best(ranks)
    return found


def _compare_best(ranks: dict[str, np.ndarray]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "dense" in ranks:
        pairs = {cut: (_hits(ranks["best"], cut).mean(), _hits(ranks["dense"], cut).mean()) for cut in CUTS}
        found["best / dense"] = {f"success@{cut}": float(best / mark) for cut, (best, mark) in pairs.items() if mark}
    value = {name: reciprocal_ranks(rows) for name, rows in ranks.items()}
    for other in ("geometry", "scan", "best_scan", "dense"):
        if other in value:
            found[f"best - {other}"] = {"mrr@10": paired_interval(value["best"], value[other])}
    rivals = [name for name in ("geometry", "scan") if name in value]
    if rivals:
        found["best - max(geometry, scan)"] = float(
            value["best"].mean() - max(float(value[name].mean()) for name in rivals)
        )
    if "best_decoder" in ranks and "geometry" in ranks:
        decoder, geometry = ranks["best_decoder"] == 1, ranks["geometry"] == 1
        found["right at rank 1"] = {
            "decoder alone": float((decoder & ~geometry).mean()),
            "geometry alone": float((~decoder & geometry).mean()),
        }
    return found


def markdown(document: dict[str, Any]) -> str:
    """Return the document as one table a task, values in per cent, aligned for the eye as well."""
    lines = []
    for task, systems in document["tasks"].items():
        head = ["system", "bytes", *(f"S@{cut}" for cut in CUTS), "MRR@10"]
        rows = [head, *_rows(systems, document["bytes_per_item"])]
        width = [max(len(row[place]) for row in rows) for place in range(len(head))]
        rule = ["-" * width[0], *("-" * (w - 1) + ":" for w in width[1:])]
        lines += [f"## {TITLES[task]}", "", *(_line(row, width) for row in (head, rule, *rows[1:]))]
        lines += ["", *_sentences(document["comparisons"][task]), ""]
    if document.get("missing"):
        lines += [f"Not measured: {', '.join(document['missing'])}.", ""]
    return "\n".join(lines)


def _rows(systems: dict[str, Any], sizes: dict[str, float]) -> list[list[str]]:
    """Return the cells of all systems of a task, in the order of the table."""
    rows = []
    for name, text in ORDER:
        if name in systems:
            values = [_cell(systems[name][measure]) for measure in (*(f"success@{cut}" for cut in CUTS), "mrr@10")]
            rows.append([f"**{text}**" if name in MORE else text, f"{sizes[name]:.4g}", *values])
    return rows


def _line(cells: list[str], width: list[int]) -> str:
    """Return a row of the table, numbers to the right."""
    first, *numbers = cells
    padded = [first.ljust(width[0]), *(cell.rjust(w) for cell, w in zip(numbers, width[1:], strict=True))]
    return f"| {' | '.join(padded)} |"


def _cell(value: dict[str, float]) -> str:
    """Return mean and deviation in per cent; one seed has no deviation."""
    spread = f" ±{100 * value['std']:.1f}" if value["std"] else ""
    return f"{100 * value['mean']:.1f}{spread}"


def _sentences(found: dict[str, Any]) -> list[str]:
    """Return what a task's comparisons say, one line each."""
    lines = []
    for name, measures in found.items():
        if " - " in name and isinstance(measures, dict):
            parts = [
                f"{measure} {100 * v['mean']:+.2f} [{100 * v['low']:+.2f}, {100 * v['high']:+.2f}]"
                for measure, v in measures.items()
            ]
            lines.append(f"- {name}, paired 95 % interval: {'; '.join(parts)}")
    if "best - max(geometry, scan)" in found:
        lines.append(f"- best - max(geometry, scan), mrr@10: {100 * found['best - max(geometry, scan)']:+.2f}")
    for name in ("gap_closed", "gap_closed_to_best_uniform"):
        if found.get(name) and found[name]["share"] is not None:
            share, against = 100 * found[name]["share"], found[name]["against"]
            lines.append(f"- PRO closes {share:.0f} % of the gap from {against} to dense in success@1")
    if found.get("best / dense"):
        ratios = ", ".join(f"{name} {value:.3f}" for name, value in found["best / dense"].items())
        lines.append(f"- best / dense: {ratios}")
    if "right at rank 1" in found:
        alone = found["right at rank 1"]
        lines.append(
            f"- at rank 1 the decoder is right where geometry is wrong for {100 * alone['decoder alone']:.1f} % of "
            f"queries, geometry where the decoder is wrong for {100 * alone['geometry alone']:.1f} %"
        )
    return list(dict.fromkeys(lines))  # where genius is the best uniform vocabulary, both gaps are one
