"""From the parts of the benchmark to its document and its tables: means over seeds, paired intervals, gaps.

All figures are of the test split.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from siglum.lab.captions.systems import GENIUS
from siglum.lab.experiments.ranks import MEASURES, Ranks, values_of
from siglum.lab.tables import Table
from siglum.lab.units import Part

ORDER = (
    ("text_alone", "dense search, words of composed queries alone"),
    ("image_alone", "dense search, pictures of composed queries alone"),
    ("dense", "dense search in the fused space"),
    ("dense_head", "the same, asked by a query head"),
    ("dense_original", "dense, space of the contrastive loss alone"),
    ("dense_original_head", "the same, asked by a query head"),
    ("dense_moved", "dense, space learnt along with codes"),
    ("dense_moved_head", "the same, asked by a query head"),
    ("dense_longer", "dense, as many epochs more of the contrastive loss alone"),
    ("dense_longer_head", "the same, asked by a query head"),
    ("dense_ensemble", "dense, three spaces together"),
    ("dense_ensemble_head", "the same, asked by query heads"),
    ("faiss_pq", "faiss product quantiser, exhaustive"),
    ("faiss_opq", "faiss rotated product quantiser, exhaustive"),
    ("faiss_rq", "faiss residual quantiser, exhaustive"),
    ("genius", "GENIUS: uniform vocabulary, decoder alone"),
    ("genius_half", "GENIUS, half the vocabulary"),
    ("genius_double", "GENIUS, double the vocabulary"),
    ("genius_joint", "GENIUS, its fused space learning along"),
    ("genius_original", "GENIUS as published: 30 soft tokens, no encoder"),
    ("pd", "+ PD"),
    ("vs", "+ VS"),
    ("sf", "+ SF"),
    ("pd_vs", "+ PD + VS"),
    ("pd_sf", "+ PD + SF"),
    ("vs_sf", "+ VS + SF"),
    ("pro", "PRO: PD + VS + SF"),
    ("pro_literal", "PRO, β = γ = λ = 100"),
    ("pro_released", "PRO, the released code's form"),
    ("pro_scan", "PRO's codes, exhaustive scan"),
    ("pro_geometry", "PRO's codes, geometry in the beam"),
    ("best_dense", "best's fused space, dense"),
    ("best_ensemble_dense", "best_ensemble's fused space, dense"),
    ("scan", "best's codes, exhaustive scan"),
    ("geometry", "best's codes, geometry in the beam"),
    ("best_scan", "best's codes and query head, exhaustive scan"),
    ("best_ensemble_scan", "the same of best_ensemble"),
    ("best_decoder", "best, decoder and prior alone"),
    ("best", "best"),
    ("best_ensemble", "best on three spaces joined"),
)
"""Systems as the table shows them."""
MORE = ("genius", "pro", "best", "best_ensemble")
"""Systems in bold."""
PARTS = {"i": "image", "t": "text", "it": "image and text"}


def build_document(parts: Sequence[Part], facts: dict[str, Any]) -> dict[str, Any]:
    """Return the document of the benchmark: what was measured, compared and chosen, and on what."""
    ranks = Ranks.read(parts)
    sizes: dict[str, list[float]] = {}
    for part in parts:
        for system, size in part["bytes"].items():
            sizes.setdefault(system, []).append(size)
    return {
        **facts,
        "bytes_per_item": {system: float(np.mean(found)) for system, found in sizes.items()},
        "tasks": cells_of(ranks),
        "comparisons": {task: _compare(ranks, task, facts.get("strongest_dense", "dense")) for task in ranks.tasks},
        "validation": _by_unit(parts, [part.get("validation") for part in parts]),
        "seconds": _by_unit(parts, [part["seconds"] for part in parts]),
        "devices": _by_unit(parts, [part["machine"]["device"] for part in parts]),
    }


def title_of(task: str) -> str:
    """Return a task in words.

    >>> title_of("it2i")
    'Image and text to image (it2i)'
    """
    given, wanted = task.split("2")
    return f"{PARTS[given].capitalize()} to {PARTS[wanted]} ({task})"


def cells_of(ranks: Ranks) -> dict[str, Any]:
    """Return task -> system -> measure -> mean and deviation over seeds, which is 0 for one."""
    return {task: _cells(ranks, task) for task in ranks.tasks}


def _by_unit(parts: Sequence[Part], values: Sequence[Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for part, value in zip(parts, values, strict=True):
        found.setdefault(part["unit"], {})[str(part["seed"])] = value
    return found


def _cells(ranks: Ranks, task: str) -> dict[str, Any]:
    return {
        system: {
            measure: {"mean": cell["mean"], "std": cell["std"] or 0.0}
            for measure in MEASURES
            for cell in [ranks.cell(system, task, measure)]
        }
        for system in ranks.systems(task)
    }


def _compare(ranks: Ranks, task: str, strongest: str) -> dict[str, Any]:
    """Return paired intervals, shares of gaps closed, and how often decoder and geometry are right alone."""
    found: dict[str, Any] = {}
    one = {system: ranks.cell(system, task, "success@1")["mean"] for system in ranks.systems(task)}
    baselines = [name for name in GENIUS if name in one]
    best = max(baselines, key=one.__getitem__, default="")
    for name in dict.fromkeys(("genius", best)):
        if "pro" in one and name in one:
            weights = {"pro": 1.0, name: -1.0}
            found[f"pro - {name}"] = {m: ranks.contrast(weights, task, m, draw_seeds=False) for m in MEASURES[:3]}
            t_test = {m: p for m, p in ranks.t_tests("pro", name)[task].items() if p is not None}
            found |= {f"pro and {name}, t-test over seeds": t_test} if t_test else {}
    if "dense" in one and "pro" in one and baselines:
        for name, against in (("gap_closed", "genius"), ("gap_closed_to_best_genius", best)):
            if against in one:
                gap = one["dense"] - one[against]
                found[name] = {"against": against, "share": (one["pro"] - one[against]) / gap if gap > 0 else None}
    return found | _compare_best(ranks, task, strongest) if "best" in one else found


def _compare_best(ranks: Ranks, task: str, strongest: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    value = {s: {m: ranks.cell(s, task, m)["mean"] for m in MEASURES} for s in ranks.systems(task)}
    for other in dict.fromkeys(("dense", strongest)):
        if other in value:
            pairs = {measure: (value["best"][measure], value[other][measure]) for measure in MEASURES}
            found[f"best / {other}"] = {measure: best / dense for measure, (best, dense) in pairs.items() if dense}
    for other in dict.fromkeys(("geometry", "scan", "best_scan", "dense", strongest)):
        if other in value:
            gap = ranks.contrast({"best": 1.0, other: -1.0}, task, "mrr@10", draw_seeds=False)
            found[f"best - {other}"] = {"mrr@10": gap}
    rivals = [value[name]["mrr@10"] for name in ("geometry", "scan") if name in value]
    if rivals:
        found["best - max(geometry, scan)"] = value["best"]["mrr@10"] - max(rivals)
    if "best_decoder" in value and "geometry" in value:
        decoder, geometry = (
            np.stack([values_of(rows, "success@1") > 0 for _, rows in sorted(ranks.by_system[name][task].items())])
            for name in ("best_decoder", "geometry")
        )
        found["right at rank 1"] = {
            "decoder alone": float((decoder & ~geometry).mean()),
            "geometry alone": float((~decoder & geometry).mean()),
        }
    return found


def markdown(document: dict[str, Any]) -> str:
    """Return the document as one table a task, values in per cent."""
    lines = [
        Table(
            task,
            title_of(task),
            ["system", "bytes", *(f"S@{measure.partition('@')[2]}" for measure in MEASURES[:3]), "MRR@10"],
            _rows(systems, document["bytes_per_item"]),
            _sentences(document["comparisons"][task]),
        ).markdown()
        for task, systems in document["tasks"].items()
    ]
    if "strongest_dense" in document:
        space, strongest = document["space_of_dense"], document["strongest_dense"]
        lines += [f"Chosen on validation: `dense` is `{space}`, and the strongest dense row is `{strongest}`.", ""]
    if document.get("missing"):
        lines += [f"Not measured: {', '.join(document['missing'])}.", ""]
    return "\n".join(lines)


def _rows(systems: dict[str, Any], sizes: dict[str, float]) -> list[list[str]]:
    """Return the cells of all systems of a task, in the order of the table."""
    return [
        [
            f"**{text}**" if name in MORE else text,
            f"{sizes[name]:.4g}",
            *(_cell(systems[name][measure]) for measure in MEASURES),
        ]
        for name, text in ORDER
        if name in systems
    ]


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
            lines.append(f"{name}, paired 95 % interval: {'; '.join(parts)}")
    if "best - max(geometry, scan)" in found:
        lines.append(f"best - max(geometry, scan), mrr@10: {100 * found['best - max(geometry, scan)']:+.2f}")
    for name, measures in found.items():
        if name.endswith("t-test over seeds"):
            lines.append(f"{name}: {', '.join(f'{measure} p = {p:.2g}' for measure, p in measures.items())}")
    for name in ("gap_closed", "gap_closed_to_best_genius"):
        if found.get(name) and found[name]["share"] is not None:
            share, against = 100 * found[name]["share"], found[name]["against"]
            lines.append(f"PRO closes {share:.0f} % of the gap from {against} to dense in success@1")
    for name in (name for name in found if name.startswith("best / ")):
        ratios = ", ".join(f"{measure} {value:.3f}" for measure, value in found[name].items())
        lines.append(f"{name}: {ratios}")
    if "right at rank 1" in found:
        alone = found["right at rank 1"]
        lines.append(
            f"at rank 1 the decoder is right where geometry is wrong for {100 * alone['decoder alone']:.1f} % of "
            f"queries, geometry where the decoder is wrong for {100 * alone['geometry alone']:.1f} %"
        )
    return list(dict.fromkeys(lines))  # where genius itself is the best, both gaps are one
