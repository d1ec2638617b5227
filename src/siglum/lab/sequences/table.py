"""From the parts of the benchmark on sequences to its document and its tables.

Shapes: S seeds, U users, R rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from siglum.lab.sequences.published import PUBLISHED
from siglum.lab.tables import Table
from siglum.lab.units import Part
from siglum.measure.retrieval import summarise
from siglum.measure.significance import draw_clusters, interval
from siglum.recommend.measures import MEASURES, per_user

ORDER = {
    "popularity": "most popular",
    "last_item": "nearest to the last item",
    "sasrec": "SASRec",
    "dense": "dense, learned vector of the history",
    "liger": "LIGER-style, generated and dense",
    "tiger": "TIGER, 4 + 4 layers",
    "tiger_strong": "TIGER, 6 + 6 layers",
    "bridge": "the same, fused by the ridge bridge",
    "pro_without_pd": "PRO without distillation",
    "pro_without_vs": "PRO without schedule",
    "pro_without_sf": "PRO without fusion",
    "pro": "PRO",
}
BASES = (
    "tiger",
    "tiger_strong",
    "bridge",
    "sasrec",
    "dense",
    "liger",
    "pro_without_pd",
    "pro_without_vs",
    "pro_without_sf",
)
"""What PRO is compared with."""
COMPARED = ("recall@10", "ndcg@10")
ROUNDS = 1000
FLOOR = 0.070
"""R@10 of a tuned SASRec on Beauty, below which the table says nothing there."""
EVEN = ("coverage", "popular", "popularity")


def build_document(parts: Sequence[Part], facts: dict[str, Any]) -> dict[str, Any]:
    """Return the document: means over seeds of every system, apart for cold items and lengths, gaps, and checks."""
    found = by_system(parts)
    own = {name: one for name, one in found.items() if not name.startswith("held_out.")}
    held = {name.removeprefix("held_out."): one for name, one in found.items() if name.startswith("held_out.")}
    return {
        **facts,
        "systems": {name: cells(one) for name, one in own.items()},
        "unseen": {name: cells(one, "unseen") for name, one in own.items()},
        "cold": {name: cells(one, "cold") for name, one in own.items()},
        "held_out": {name: cells(one) for name, one in held.items()},
        "by_codes": {name: cells(one, "by_codes") for name, one in own.items() if "by_codes" in one[0]["measures"]},
        "lengths": {name: lengths(one) for name, one in own.items()},
        "bias": {name: {key: spread([p["measures"][key] for p in one]) for key in EVEN} for name, one in own.items()},
        "comparisons": compare(own, "ranks"),
        "comparisons_unseen": compare(own, "unseen_ranks"),
        "parts_of_pro": acted(found, parts),
        "training_seconds": by_unit(parts, "training_seconds"),
        "validation": by_unit(parts, "validation"),
        "search": by_unit(parts, "search"),
        "disambiguation": by_unit(parts, "disambiguation"),
        "checks": by_unit(parts, "check"),
        "latency_ms": by_unit(parts, "latency_ms"),
        "devices": {f"{part['unit']}-{part['seed']}": part["machine"]["device"] for part in parts},
        "published": PUBLISHED.get(str(facts.get("category")), {}),
    }


def by_system(parts: Sequence[Part]) -> dict[str, list[dict[str, Any]]]:
    """Return every system's parts in the order of seeds, systems in the order of the table."""
    found: dict[str, list[dict[str, Any]]] = {}
    for part in sorted(parts, key=lambda one: int(one["seed"])):
        for name, one in part["systems"].items():
            found.setdefault(name, []).append({**one, "seed": part["seed"]})
    return {name: found[name] for name in [*ORDER, *sorted(found.keys() - ORDER.keys())] if name in found}


def by_unit(parts: Sequence[Part], name: str) -> dict[str, dict[str, Any]]:
    """Return what the parts have under a name, by unit and seed."""
    found: dict[str, dict[str, Any]] = {}
    for part in parts:
        if name in part:
            found.setdefault(part["unit"], {})[str(part["seed"])] = part[name]
    return found


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return mean and deviation over seeds, which is 0 for one."""
    own = summarise(values)
    return {"mean": own.mean, "std": own.std if own.n > 1 else 0.0}


def cells(parts: Sequence[Mapping[str, Any]], policy: str = "") -> dict[str, Any]:
    """Return every measure of a system; `policy` names what of its measures."""
    own = [part["measures"][policy] if policy else part["measures"] for part in parts]
    found: dict[str, Any] = {name: spread([one[name] for one in own]) for name in MEASURES}
    if "users" in own[0]:
        found["users"] = own[0]["users"]
    return found


def lengths(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return every measure by how many items came before."""
    names = parts[0]["measures"]["lengths"]
    return {
        name: {
            "users": names[name]["users"],
            **{key: spread([part["measures"]["lengths"][name][key] for part in parts]) for key in MEASURES},
        }
        for name in names
    }


def compare(found: Mapping[str, Sequence[Mapping[str, Any]]], ranks: str) -> dict[str, Any]:
    """Return what PRO has more than each other system, with intervals of a paired bootstrap over users and seeds."""
    if "pro" not in found:
        return {}
    return {
        f"pro - {name}": {measure: gap(found["pro"], found[name], measure, ranks) for measure in COMPARED}
        for name in BASES
        if name in found and {one["seed"] for one in found[name]} & {one["seed"] for one in found["pro"]}
    }


def gap(
    one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]], measure: str, ranks: str = "ranks"
) -> dict[str, float]:
    """Return the mean difference of two systems over the seeds both have, and the ends of its 95 % interval."""
    pairs = [(a, b) for a in one for b in other if a["seed"] == b["seed"]]
    value_SU = np.stack([
        per_user(np.array(a[ranks]))[measure] - per_user(np.array(b[ranks]))[measure] for a, b in pairs
    ])  # fmt: skip
    seeds, users = value_SU.shape
    draw, rounds = np.random.default_rng(0), [float(value_SU.mean())]
    for many_RU in draw_clusters(np.arange(users), ROUNDS):
        many_RS = draw.multinomial(seeds, np.full(seeds, 1 / seeds), len(many_RU))
        sum_R = ((many_RU @ value_SU.T) * many_RS).sum(1)
        rounds += (sum_R / (users * seeds)).tolist()
    return interval(np.array(rounds))


def acted(found: Mapping[str, Sequence[Mapping[str, Any]]], parts: Sequence[Part]) -> dict[str, Any]:
    """Return for each part of PRO what it brings, and whether it did what it is for."""
    told: dict[str, Any] = {}
    for name, without in (
        ("distillation", "pro_without_pd"), ("schedule", "pro_without_vs"), ("fusion", "pro_without_sf")
    ):  # fmt: skip
        if "pro" in found and without in found:
            told[name] = {measure: gap(found["pro"], found[without], measure) for measure in COMPARED}
    checks = {part["unit"]: part["check"][part["unit"]] for part in parts if "check" in part}
    for unit in ("pro", "pro_without_pd", "pro_without_vs", "tiger_strong"):
        if unit in checks:
            told.setdefault("levels", {})[unit] = {
                "K": [level["K"] for level in checks[unit]["levels"]],
                "token_survival": [level["survival"] for level in checks[unit]["levels"]],
                "beam_survival": checks[unit]["rungs"],
            }
    return told


def markdown(document: Mapping[str, Any]) -> str:
    """Return all tables, and what they say."""
    tables = [_main(document), _delta(document), *(_side(document, *one) for one in SIDES if document[one[0]])]
    return "\n".join([*(table.markdown() for table in tables if table.rows), _verdict(document)])


SIDES = (
    ("unseen", "Items that a user has had left out"),
    ("cold", "Users whose next item training never saw"),
    ("held_out", "Items held out of training and added afterwards"),
    ("by_codes", "Matching codes without the last number that tells equal ones apart"),
)


def _row(label: str, found: Mapping[str, Any]) -> list[str]:
    return [label, *(_cell(found[name]) for name in MEASURES)]


def _cell(found: Mapping[str, float]) -> str:
    return f"{found['mean']:.4f}" + (f" ±{found['std']:.4f}" if found["std"] else "")


def _main(document: Mapping[str, Any]) -> Table:
    """Return all systems, with the published rows below."""
    head = ["system", *(name.replace("recall", "R").replace("ndcg", "NDCG") for name in MEASURES), "shown %", "seconds"]
    spent = document["training_seconds"]
    rows = []
    for name, found in document["systems"].items():
        seconds = [value for value in spent.get(name, {}).values() if value]
        shown = f"{100 * document['bias'][name]['coverage']['mean']:.1f}"
        rows.append([*_row(ORDER.get(name, name), found), shown, f"{np.mean(seconds):.0f}" if seconds else ""])
    for name, values in document["published"].items():
        rows.append([f"*{name}*", *(f"{value:.4f}" for value in values), "", ""])
    notes = [
        "R@k: the share of users whose next item is among the first k of the whole catalogue, by its full id; items"
        " that a user has had may come again.",
        "Rows in italics are quoted, with items, splits and policies of their own.",
    ]
    return Table("sequences", f"Next item, {document['users']:,} users, {document['items']:,} items", head, rows, notes)


def _delta(document: Mapping[str, Any]) -> Table:
    """Return the paper's table: TIGER, PRO and their difference."""
    found, best = (
        document["systems"],
        [name for name in ("tiger", "tiger_strong", "bridge") if name in document["systems"]],
    )
    if "pro" not in found or not best:
        return Table("gap", "TIGER and PRO", ["row", *MEASURES])
    base = max(best, key=lambda name: found[name]["recall@10"]["mean"])
    pro, own = found["pro"], found[base]
    gaps = {name: pro[name]["mean"] - own[name]["mean"] for name in MEASURES}
    rows = [
        _row(f"{ORDER[base]} (the best of {len(best)})", own),
        _row("PRO", pro),
        ["Δ", *(f"{gaps[name]:+.4f}" for name in MEASURES)],
        ["Δ %", *(f"{100 * gaps[name] / own[name]['mean']:+.1f}" if own[name]["mean"] else "" for name in MEASURES)],
    ]
    notes = []
    for pair, gap_of in document["comparisons"].items():
        told = ", ".join(
            f"{name.replace('recall', 'R').replace('ndcg', 'NDCG')} {value['mean']:+.4f} ({value['low']:+.4f} to"
            f" {value['high']:+.4f})"
            for name, value in gap_of.items()
        )
        notes.append(f"{pair}: {told}.")
    notes.append("In brackets: 95 % of a paired bootstrap over users and seeds.")
    return Table("gap", "TIGER and PRO", ["row", *MEASURES], rows, notes)


def _side(document: Mapping[str, Any], name: str, title: str) -> Table:
    rows = [_row(ORDER.get(system, system), found) for system, found in document[name].items()]
    users = next((found["users"] for found in document[name].values() if "users" in found), None)
    return Table(name, title + (f" ({users:,} users)" if users is not None else ""), ["system", *MEASURES], rows)


def _verdict(document: Mapping[str, Any]) -> str:
    """Return what the table allows to be said."""
    found, gaps = document["systems"], document["comparisons"]
    said = []
    if document.get("category") == "beauty" and "sasrec" in found and found["sasrec"]["recall@10"]["mean"] < FLOOR:
        said.append(f"SASRec stays below R@10 {FLOOR:.3f}, which it reaches when tuned: this table is void.")
    others = [f"pro - {name}" for name in ("tiger", "tiger_strong", "bridge") if f"pro - {name}" in gaps]
    if others:
        above = all(gaps[pair][measure]["low"] > 0 for pair in others for measure in COMPARED)
        if above:
            said.append("PRO is above TIGER and the bridge on R@10 and NDCG@10, each interval above 0.")
        else:
            parts = [
                name
                for name, values in document["parts_of_pro"].items()
                if name != "levels" and values["recall@10"]["low"] > 0
            ]
            did = f"what did something by itself: {', '.join(parts)}" if parts else "no part did anything by itself"
            said.append(f"PRO is not above all of TIGER and the bridge beyond chance; {did}.")
    if (
        "pro" in found
        and "sasrec" in found
        and found["pro"]["recall@10"]["mean"] < found["sasrec"]["recall@10"]["mean"]
    ):
        said.append("SASRec, which generates nothing, finds more than PRO.")
    return "\n".join([*said, ""])
