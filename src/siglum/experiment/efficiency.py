"""Experiment `efficiency`: queries a second and bytes against the size of the pool.

Bytes an item and bytes that do not grow with the pool (decoder, codebooks) are told apart, since only both together
say from which size on a generative index is the smaller one. What every system needs, the encoder and the fusion
module, is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch

from siglum.experiment.base import Outcome, Part, Unit
from siglum.experiment.efficiency_bytes import break_even, bytes_of, sizes_of
from siglum.experiment.efficiency_systems import Clock, Search, dense, generative, hnsw, random_pool, scan
from siglum.experiment.efficiency_view import (
    SYSTEMS,
    batches_of,
    break_even_table,
    byte_figure,
    byte_table,
    speed_figure,
    speed_table,
)
from siglum.experiment.plots import short
from siglum.experiment.setting import Setting
from siglum.types import SiglumError

POOLS = (5_000, 20_000, 50_000, 100_000, 300_000, 1_000_000)
TINY_POOLS = (500, 2_000)
"""Sizes of the pool, and those at scale tiny, which only shows that everything runs."""
BATCHES = [1, 64, 512]
"""Queries asked at once."""
REVISION = 2
"""Rises whenever what is timed changes; parts of an earlier one are measured again."""
HNSW_MOST = 100_000
"""Largest pool a graph is built for; its time to build grows to hours on two cores."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Throughput and bytes of generative and dense search."""

    pools: tuple[int, ...] = ()
    """Empty is `POOLS`, or `TINY_POOLS`."""
    name: str = "efficiency"
    title: str = "Queries a second and bytes against the size of the pool"

    def units(self, setting: Setting) -> list[Unit]:
        """Return one unit a size of the pool, at the recipe's size for the data; seeds and vectors play no part."""
        tiny = setting.scale == "tiny"
        pools = setting.pools or self.pools or (TINY_POOLS if tiny else POOLS)
        if min(pools) < 1:
            raise SiglumError(f"a pool of {min(pools)} items was asked for, but it needs at least 1.")
        config, seconds = setting.config(), 0.02 if tiny else 1.0
        shared = {"batches": BATCHES, "seconds": seconds, "revision": REVISION}
        return [
            Unit(f"pool-{items}", 0, config, {"items": items, **shared}, alone=True, data=False)
            for items in sorted(set(pools))
        ]

    def measure(self, setting: Setting, unit: Unit) -> dict[str, Any]:
        """Time every system on one random pool."""
        items, batches, clock = unit.options["items"], unit.options["batches"], Clock(unit.options["seconds"])
        pool = random_pool(unit.config, items, max(batches), setting.device)
        makers: dict[str, Callable[[], Search]] = {
            "generative": lambda: generative(pool, "decoder"),
            "fused": lambda: generative(pool, "fused"),
            "dense_fp32": lambda: dense(pool, torch.float32),
            "scan": lambda: scan(pool),
        }
        notes = []
        if setting.device.startswith("cuda"):
            makers["dense_fp16"] = lambda: dense(pool, torch.float16)
        else:
            notes.append("dense flat fp16 was not timed: a CPU has no fast arithmetic for it")
        speed = {name: clock.rates(make(), pool.query_QD, batches) for name, make in makers.items()}
        facts: dict[str, Any] = {}
        if find_spec("faiss") is None:
            notes.append("HNSW was left out: faiss is not installed; `pip install faiss-cpu` brings it")
        elif items > HNSW_MOST:
            notes.append(f"HNSW was left out above {HNSW_MOST:,} items: its graph takes too long to build")
        else:
            search, facts = hnsw(pool)
            speed["hnsw"] = clock.rates(search, pool.query_QD, batches)
        size = {"dim": unit.config.fusion.dim, "beam": unit.config.search.beam, **sizes_of(pool)}
        return {"items": items, "speed": speed, "hnsw": facts, "bytes": bytes_of(pool), "size": size, "notes": notes}

    def assemble(self, setting: Setting, parts: list[Part]) -> Outcome:
        """Set the pools side by side and work out where curves cross."""
        parts = sorted(parts, key=lambda part: int(part["items"]))
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
            "crossings": {batch: crossings(parts, batch) for batch in batches_of(parts)},
            "notes": sorted({note for part in parts for note in part["notes"]}),
        }
        about = (
            f"Random weights and codes at the size of recipe {setting.recipe}, scale {setting.scale}: {size['dim']} "
            f"numbers a vector, {size['levels']} levels, {size['parameters']:,} parameters, beam {size['beam']}."
        )
        tables = [
            speed_table(parts, results, about),
            byte_table(cost, about),
            break_even_table(results["break_even"]),
        ]
        return Outcome(results, tables, [speed_figure(parts), byte_figure(cost, results["break_even"])])


def crossings(parts: list[Part], batch: str) -> dict[str, str | float]:
    """Return the size of pool from which each exhaustive system is slower than generative search with fusion.

    A number is read off between measured pools, both axes logarithmic; otherwise words say where it must lie.
    """
    found: dict[str, str | float] = {}
    for name in SYSTEMS:
        rows = [
            (int(part["items"]), math.log(part["speed"][name][batch]["rate"] / part["speed"]["fused"][batch]["rate"]))
            for part in parts
            if part["speed"].get(name, {}).get(batch) and part["speed"]["fused"][batch]
        ]
        if name in ("generative", "fused") or not rows:
            continue
        below = [place for place, (_, lead) in enumerate(rows) if lead < 0]
        if not below:
            items, lead = rows[-1]
            # The work of exhaustive search grows with the pool, that of a graph hardly does.
            guess = "" if name == "hnsw" else f" (about {short(items * math.exp(lead))} if linear)"
            found[name] = f"beyond {short(items)}{guess}"
        elif below[0] == 0:
            found[name] = f"below {short(rows[0][0])}"
        else:
            (left, high), (right, low) = rows[below[0] - 1], rows[below[0]]
            found[name] = round(left * (right / left) ** (high / (high - low)))
    return found
