"""Experiment `efficiency`: queries a second and bytes against the size of the pool.

Bytes an item and bytes that do not grow with the pool (decoder, codebooks) are told apart, since only both together
say from which size on a generative index is the smaller one. What every system needs, the encoder and the fusion
module, is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import torch

from siglum.config import QueryConfig, SearchConfig
from siglum.lab.experiments import region
from siglum.lab.experiments.base import Outcome, Part, Unit
from siglum.lab.experiments.efficiency_bytes import break_even, bytes_of, sizes_of
from siglum.lab.experiments.efficiency_view import (
    SYSTEMS,
    batches_of,
    break_even_table,
    byte_figure,
    byte_table,
    speed_figure,
    speed_table,
)
from siglum.lab.experiments.plots import short
from siglum.lab.experiments.region_view import front, region_figure, region_table, winners
from siglum.lab.experiments.setting import Setting
from siglum.lab.speed.clock import Clock, crossings
from siglum.lab.speed.pool import Pool, draw_pool
from siglum.lab.speed.systems import EFFORT, LINKS, Faiss, Flat, Generative, System
from siglum.types import SiglumError

K = 10
"""Items a query asks for."""
POOLS = (5_000, 20_000, 50_000, 100_000, 300_000, 1_000_000)
TINY_POOLS = (500, 2_000)
"""Sizes of the pool, and those at scale tiny, which only shows that everything runs."""
BATCHES = [1, 64, 512]
"""Queries asked at once."""
ROUNDS = 3
"""How often all systems take their turn."""
LONGEST = 60.0
"""A batch that would take more seconds is left out."""
REVISION = 3
"""Rises whenever what is timed changes; parts of an earlier one are measured again."""
HNSW_MOST = 100_000
"""Largest pool a graph is built for; its time to build grows to hours on two cores."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Throughput and bytes of generative and dense search, and recall against both of trained systems."""

    pools: tuple[int, ...] = ()
    """Empty is `POOLS`, or `TINY_POOLS`."""
    name: str = "efficiency"
    title: str = "Queries a second and bytes against the size of the pool"

    def units(self, setting: Setting) -> list[Unit]:
        """Return one unit a size of the pool, at the recipe's size for the data; then those of trained systems."""
        tiny = setting.scale == "tiny"
        pools = setting.pools or self.pools or (TINY_POOLS if tiny else POOLS)
        if min(pools) < 1:
            raise SiglumError(f"a pool of {min(pools)} items was asked for, but it needs at least 1.")
        config, seconds = setting.config(), 0.02 if tiny else 1.0
        shared = {"batches": BATCHES, "seconds": seconds, "revision": REVISION}
        drawn = [
            Unit(f"pool-{items}", 0, config, {"items": items, **shared}, alone=True, data=False)
            for items in sorted(set(pools))
        ]
        sizes = setting.pools or (region.TINY_POOLS if tiny else region.POOLS)
        return drawn + region.region_units(setting, sizes, seconds)

    def measure(self, setting: Setting, unit: Unit) -> dict[str, Any]:
        """Time every system on one drawn pool, or judge and time trained ones."""
        if unit.name.startswith(region.NAME):
            return region.measure_region(setting, unit)
        items, batches = unit.options["items"], unit.options["batches"]
        # What makes a query vector is needed by every system, so none of it is timed.
        pool = draw_pool(items, max(batches), replace(unit.config, query=QueryConfig()))
        systems, notes = open_systems(pool, setting.device, max(batches))
        clock = Clock(unit.options["seconds"] / ROUNDS, least=1, longest=LONGEST)
        searches = {name: system.search for name, system in systems.items()}
        speed = clock.rates(searches, pool.query_QD, batches, ROUNDS)
        size, facts = sizes_of(pool), systems["hnsw"].facts if "hnsw" in systems else {}
        return {
            "items": items,
            "speed": speed,
            "hnsw": facts,
            "bytes": bytes_of(pool, size),
            "size": {"dim": unit.config.fusion.dim, "beam": unit.config.search.beam, **size},
            "notes": notes,
        }

    def assemble(self, setting: Setting, parts: list[Part]) -> Outcome:
        """Set the pools side by side, work out where curves cross, and show where trained systems win."""
        parts = sorted(parts, key=lambda part: int(part["items"]))
        drawn, trained = ([part for part in parts if ("region" in part) is own] for own in (False, True))
        outcome = self._crossings(setting, drawn) if drawn else Outcome({})
        if trained:
            outcome.results["region"] = {
                str(part["items"]): {name: part[name] for name in ("region", "task", "queries", "size", "notes")}
                | {"front": front(part["region"]), "winners": winners(part)}
                for part in trained
            }
            outcome.tables.append(region_table(trained))
            outcome.figures.append(region_figure(trained))
        return outcome

    def _crossings(self, setting: Setting, parts: list[Part]) -> Outcome:
        size, cost = parts[0]["size"], parts[0]["bytes"]
        graphs = [part["hnsw"]["item_bytes"] for part in parts if part["hnsw"]]
        if graphs:
            cost = {**cost, "hnsw": {"item": graphs[-1], "fixed": 0}}
        results = {
            "size": size,
            "speed": {str(part["items"]): part["speed"] for part in parts},
            "hnsw": {str(part["items"]): part["hnsw"] for part in parts if part["hnsw"]},
            "bytes": cost,
            "break_even": break_even(cost),
            "crossings": {batch: slower_from(parts, batch) for batch in batches_of(parts)},
            "notes": sorted({note for part in parts for note in part["notes"]}),
        }
        about = (
            f"Random weights and drawn items at the size of recipe {setting.recipe}, scale {setting.scale}: "
            f"{size['dim']} numbers a vector, {size['levels']} levels, {size['parameters']:,} parameters, "
            f"beam {size['beam']}."
        )
        tables = [
            speed_table(parts, results, about),
            byte_table(cost, about),
            break_even_table(results["break_even"]),
        ]
        return Outcome(results, tables, [speed_figure(parts), byte_figure(cost, results["break_even"])])


def open_systems(pool: Pool, device: str, batch: int) -> tuple[dict[str, System], list[str]]:
    """Return what is timed, and notes of what is not: searches by the paper's score in fp32, dense search, a graph."""
    plain = {"beam": pool.config.beam, "omega": pool.config.omega, "batch_size": batch, "engine": "fast"}
    asked = {
        "generative": SearchConfig(scorer="decoder", **plain),  # type: ignore[arg-type]
        "fused": SearchConfig(scorer="fused", **plain),  # type: ignore[arg-type]
        "scan": SearchConfig(mode="scan", **plain),  # type: ignore[arg-type]
    }
    systems: dict[str, System] = {name: Generative(pool, config, device, K) for name, config in asked.items()}
    systems["dense_fp32"], notes = Flat(pool, "fp32", device, K), []
    if device.startswith("cuda"):
        systems["dense_fp16"] = Flat(pool, "fp16", device, K)
    else:
        notes.append("dense flat fp16 was not timed: a CPU has no fast arithmetic for it")
    if find_spec("faiss") is None:
        notes.append("HNSW was left out: faiss is not installed; `pip install faiss-cpu` brings it")
    elif len(pool.index) > HNSW_MOST:
        notes.append(f"HNSW was left out above {HNSW_MOST:,} items: its graph takes too long to build")
    else:
        graph = systems["hnsw"] = Faiss(pool, "faiss-hnsw", torch.get_num_threads(), None, K)
        recall = graph.facts.pop(f"recall_at_{K}")
        graph.facts |= {"links": LINKS, "effort": EFFORT, "item_bytes": graph.item_bytes(), "recall": recall}
    return systems, notes


def slower_from(parts: list[Part], batch: str) -> dict[str, str | float]:
    """Return the size of pool from which each exhaustive system is slower than generative search with fusion.

    A number is read off between measured pools, both axes logarithmic; otherwise words say where it must lie.
    """
    found: dict[str, str | float] = {}
    for name in SYSTEMS:
        both = [(part, part["speed"].get(name, {}).get(batch), part["speed"]["fused"][batch]) for part in parts]
        rows = [(int(part["items"]), math.log(one["rate"] / own["rate"])) for part, one, own in both if one and own]
        if name in ("generative", "fused") or not rows:
            continue
        pools, leads = zip(*rows, strict=True)
        inside = crossings(pools, leads)
        if leads[0] < 0:
            found[name] = f"below {short(pools[0])}"
        elif inside:
            found[name] = round(inside[0])
        else:
            # The work of exhaustive search grows with the pool, that of a graph hardly does.
            guess = "" if name == "hnsw" else f" (about {short(pools[-1] * math.exp(leads[-1]))} if linear)"
            found[name] = f"beyond {short(pools[-1])}{guess}"
    return found
