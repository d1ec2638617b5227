"""Static-shape search on one GPU: equal to the reference search, and how fast, section by section.

    python benchmarks/h200_engine.py --sections check,ceiling,latency,throughput,pools,profile --out h200_engine.json

The paper-size model (6 + 6 layers, width 512, 17 codes) with seeded random weights over the pools that `siglum bench
speed` draws. Every section writes what it found at once and stops after --seconds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from siglum.config import DecoderConfig, SearchConfig
from siglum.generate.decoder import CodeDecoder
from siglum.lab.speed.pool import LEARNT, Pool, draw_pool
from siglum.recipes import recipe
from siglum.search.beam import Ranking, search_items
from siglum.search.scorers import build_scorer
from siglum.search.static import GraphSearch, Plan
from siglum.tokenize.base import NUM_MODALITIES

K, QUERIES = 50, 4096
FLOPS_A_TOKEN = 2 * 18.9e6
SECTIONS = ("check", "ceiling", "latency", "throughput", "pools", "profile")


class Bench:
    """The model, the pools and what was found so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Draw the model."""
        self.device, self.out, self.seconds = options.device, Path(options.out), options.seconds
        self.config = SearchConfig(beam=options.beam)
        own = DecoderConfig(**json.loads(options.model))
        self.model = replace(recipe("pro"), decoder=own, search=self.config)
        sizes, dim = (NUM_MODALITIES, *self.model.tokenizer.vocab), self.model.fusion.dim
        self.decoder = CodeDecoder(own, sizes, dim, torch.Generator().manual_seed(0)).eval().to(self.device)
        self.items, self.pools, self.reps = options.items, [int(n) for n in options.pools.split(",")], options.reps
        self.fused = not options.plain
        self.batches = [int(n) for n in options.batches.split(",")]
        self.drawn: dict[tuple[int, float], Pool] = {}
        self.found: dict[str, Any] = {"torch": torch.__version__, "device": device_name(self.device)}

    def world(self, items: int, near: float = 0.0) -> Pool:
        """Return a pool, made when first asked for: a share of its items lies near others."""
        if (items, near) not in self.drawn:
            pool = self.drawn[items, near] = draw_pool(items, QUERIES - LEARNT, self.model, near)
            pool.query_QD, pool.learnt_LD = pool.query_QD.to(self.device), pool.learnt_LD.to(self.device)
            pool.codebooks = [book.to(self.device) for book in pool.codebooks]
        return self.drawn[items, near]

    def engine(self, world: Pool, config: SearchConfig | None = None, **options: Any) -> GraphSearch:
        """Return an engine on a pool."""
        found = GraphSearch(
            self.decoder, world.codebooks, world.index, config or self.config, 1, self.device, **options
        )
        found.learn(world.learnt_LD)
        return found

    def note(self, section: str, **row: Any) -> None:
        """Keep a row, print it and write all rows."""
        self.found.setdefault(section, []).append(row)
        print(section, " ".join(f"{key}={value}" for key, value in row.items()), flush=True)
        self.out.write_text(json.dumps(self.found, indent=1))

    def within(self, section: str, cases: list[Callable[[], None]]) -> None:
        """Run cases until the section's time is over; a case that fails is noted and the next one goes on."""
        start = perf_counter()
        for number, case in enumerate(cases):
            if perf_counter() - start > self.seconds:
                self.note(section, left_out=len(cases) - number)
                return
            try:
                case()
            except Exception as error:  # one broken variant must not cost the others
                self.note(section, failed=f"{type(error).__name__}: {str(error)[:300]}")
            if self.device.startswith("cuda"):
                torch.cuda.empty_cache()


def device_name(device: str) -> str:
    """Return the name of the GPU, or cpu."""
    return torch.cuda.get_device_name() if device.startswith("cuda") else device


def agreement(found: list[Ranking], wanted: list[Ranking]) -> dict[str, float]:
    """Return overlap of the items, the largest difference of scores where both have an item, and equal rankings."""
    overlap, worst, same = [], 0.0, 0
    for left, right in zip(found, wanted, strict=True):
        scores = dict(zip(right.position.tolist(), right.score.tolist(), strict=True))
        both = [(scores[p], s) for p, s in zip(left.position.tolist(), left.score.tolist(), strict=True) if p in scores]
        overlap.append(len(both) / max(1, len(right)))
        worst = max(worst, max((abs(a - b) for a, b in both), default=np.inf))
        same += left.position.tolist() == right.position.tolist()
    return {"overlap_at_50": round(float(np.mean(overlap)), 5), "worst": float(f"{worst:.2e}"), "same_order": same}


def check(bench: Bench) -> None:
    """Compare every way to run with the reference search, in fp32 and bf16."""
    pools = [(5_000, 0.0), (bench.items, 0.3)]
    known: dict[tuple[tuple[int, float], float], list[Ranking]] = {}

    def one(pool: tuple[int, float], omega: float, **options: Any) -> None:
        world, config = bench.world(*pool), replace(bench.config, omega=omega)
        query = world.query_QD[:32]
        if (pool, omega) not in known:
            scorer = build_scorer(config, world.codebooks, bench.decoder, 1)
            known[pool, omega] = search_items(scorer, world.index, query, beam=config.beam, k=K)
        wanted = known[pool, omega]
        engine = bench.engine(world, config, **options)
        row = agreement(engine.search(query, k=K), wanted)
        lone = agreement([engine.search(part, k=K)[0] for part in query[:4].split(1)], wanted[:4])
        over = int(engine.engine.find(query, engine.plan(32), K).over_Q.sum())
        told = {name: str(value) for name, value in options.items()}
        bench.note("check", items=pool[0], near=pool[1], omega=omega, **told, **row, alone=lone["worst"], over=over)

    full = {"dtype": torch.float32}
    walk, wide = Plan(17, 0, 1), Plan(3, 512, 1)
    ways: list[dict[str, Any]] = [
        {**full, "graphs": False}, full, {**full, "kernels": "steps"}, {**full, "kernels": "attention"},
        {**full, "plan": wide}, {**full, "plan": walk}, {**full, "fused": False}, {}, {"plan": walk},
    ]  # fmt: skip
    cases = [(pool, 10.0, way) for pool in pools for way in ways] + [(pools[0], 0.0, way) for way in ways[:3]]
    bench.within("check", [lambda c=case: one(c[0], c[1], **c[2]) for case in cases])  # type: ignore[misc]


def timed(run: Callable[[], object], reps: int, device: str) -> float:
    """Return the median seconds of a run, after two to warm up."""
    seconds = []
    for rep in range(reps + 2):
        sync(device)
        start = perf_counter()
        run()
        sync(device)
        if rep >= 2:
            seconds.append(perf_counter() - start)
    return float(np.median(seconds))


def sync(device: str) -> None:
    """Wait for the GPU."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def ceiling(bench: Bench) -> None:
    """Measure bf16 products of the shapes that search has, and a large one."""
    shapes = [(8192, 8192, 8192), (65536, 512, 1536), (65536, 512, 2048), (65536, 2048, 512), (16384, 512, 2048)]
    shapes += [(12800, 512, 2048), (50, 512, 2048), (50, 2048, 512)]
    kind = torch.bfloat16 if bench.device.startswith("cuda") else torch.float32

    def one(m: int, k: int, n: int) -> None:
        a, b = (torch.randn(*shape, device=bench.device, dtype=kind) for shape in ((m, k), (k, n)))
        loops = 50 if m * k * n < 2**36 else 5
        seconds = timed(lambda: [a @ b for _ in range(loops)], 5, bench.device) / loops
        tera = round(2e-12 * m * k * n / seconds, 1)
        bench.note("ceiling", shape=f"{m}x{k}x{n}", us=round(1e6 * seconds, 1), tflops=tera)

    bench.within("ceiling", [lambda s=shape: one(*s) for shape in shapes])  # type: ignore[misc]


def latency(bench: Bench) -> None:
    """Time single queries from host memory to rankings, plan by plan."""
    world = bench.world(bench.items)
    host = world.query_QD.cpu()

    def one(kernels: str, depth: int | None, merged: int) -> None:
        own = {"fused": bench.fused, "kernels": kernels}
        engine = bench.engine(world, **own)
        if depth is not None:  # the room that the queries it learnt from need
            engine = bench.engine(world, **own, plan=engine.engine.shape.plan(depth, None, merged))
        parts, seconds = host[: bench.reps + 20].split(1), []
        for part in parts:
            start = perf_counter()
            engine.search(part, k=K)
            seconds.append(perf_counter() - start)
        p50, p95 = (round(1e3 * float(q), 3) for q in np.quantile(seconds[20:], [0.5, 0.95]))
        chosen = engine.plan(1)
        inner = timed(lambda: engine._find(engine.engine, world.query_QD[:1], chosen, K), bench.reps // 4, bench.device)
        over = np.mean([float(engine.engine.find(part, chosen, K).over_Q[0]) for part in world.query_QD[:32].split(1)])
        shape = f"{chosen.depth}/{chosen.cap}/{chosen.merged}"
        bench.note(
            "latency", kernels=kernels, plan=shape, p50_ms=p50, p95_ms=p95, device_ms=round(1e3 * inner, 3), over=over
        )

    ways = [("all", 3, 1), ("all", 3, 2), ("steps", 3, 1), ("all", None, 0), ("all", 4, 1), ("all", 4, 2)]
    ways += [("attention", 3, 1), ("all", 5, 1), ("all", 17, 1)]
    cases = [lambda w=way: one(*w) for way in ways]  # type: ignore[misc]
    bench.within("latency", cases)


def speed(bench: Bench, engine: GraphSearch, query: Tensor, batch: int) -> dict[str, Any]:
    """Return queries a second over many batches in a row, and what share of the arithmetic peak that is."""
    parts = [part for part in query.split(batch) if len(part) == batch] or [query.repeat(batch, 1)[:batch]]
    parts = (parts * 64)[: max(3, min(32, 4096 // batch))]
    seconds = timed(lambda: [engine.search_tensors(part, K) for part in parts], 3, bench.device)
    rate = batch * len(parts) / seconds
    plan = engine.plan(batch)
    over = float(
        torch.stack([engine._find(engine.engine, part, plan, K).over_Q.float().mean() for part in parts]).mean()
    )
    floor = round(rate * 752 * FLOPS_A_TOKEN / 1e12, 1)
    shape = f"{plan.depth}/{plan.cap}/{plan.merged}"
    return {
        "batch": batch,
        "plan": shape,
        "queries_per_s": round(rate, 1),
        "useful_tflops": floor,
        "over": round(over, 4),
    }


def throughput(bench: Bench) -> None:
    """Time large batches with and without fusion, for kernels, plans and how much the tail reads at once."""
    world = bench.world(bench.items)

    def one(batch: int, omega: float, name: str, **options: Any) -> None:
        engine = bench.engine(world, replace(bench.config, omega=omega), **options)
        shape = engine.engine.shape
        if name != "best":
            depth = None if name == "sure" else int(name)
            plan = shape.best(batch, sure=True) if depth is None else shape.plan(depth, None, 1)
            engine = bench.engine(world, engine.config, **options, plan=plan)
        told = {key: str(value) for key, value in options.items()}
        bench.note("throughput", omega=omega, way=name, **told, **speed(bench, engine, world.query_QD, batch))

    big, fused = max(bench.batches), bench.fused
    ways: Iterator[tuple[int, float, str, dict[str, Any]]] = iter(
        [(big, omega, "best", {"fused": fused}) for omega in (10.0, 0.0)]
        + [(big, 10.0, "best", {"fused": fused, "kernels": kernels}) for kernels in ("steps", "attention")]
        + [(batch, 10.0, "best", {"fused": fused}) for batch in sorted(bench.batches)[:-1]]
        + [(big, 10.0, name, {"fused": fused}) for name in ("4", "5", "6", "7", "17")]
        + [(big, 10.0, "best", {"fused": fused, "tokens": tokens}) for tokens in (16_384, 262_144)]
        + [(big, 10.0, "best", {"fused": False})]
    )
    bench.within("throughput", [lambda w=way: one(w[0], w[1], w[2], **w[3]) for way in ways])  # type: ignore[misc]


def pools(bench: Bench) -> None:
    """Time the largest batch over growing pools and one with near-duplicates."""

    def one(items: int, near: float) -> None:
        world = bench.world(items, near)
        engine = bench.engine(world, fused=bench.fused)
        bench.note("pools", items=items, near=near, **speed(bench, engine, world.query_QD, max(bench.batches)))

    cases = [(items, 0.0) for items in bench.pools] + [(bench.items, 0.3)]
    bench.within("pools", [lambda c=case: one(*c) for case in cases])  # type: ignore[misc]


def profile(bench: Bench) -> None:
    """Print which kernels take the time, for a large batch and for one query."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    world = bench.world(bench.items)
    kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if bench.device.startswith("cuda") else [])

    def one(batch: int) -> None:
        engine = bench.engine(world, fused=bench.fused, graphs=False)
        query, plan = world.query_QD[:batch], engine.plan(batch)
        engine.engine.find(query, plan, K)
        with record(activities=kinds) as recorded:
            engine.engine.find(query, plan, K)
            sync(bench.device)
        key = "self_cuda_time_total" if bench.device.startswith("cuda") else "self_cpu_time_total"
        rows = sorted(recorded.key_averages(), key=lambda row: -getattr(row, key.replace("cuda", "device")))[:16]
        for row in rows:
            spent = round(getattr(row, key.replace("cuda", "device")))
            bench.note("profile", batch=batch, us=spent, calls=row.count, kernel=row.key[:90])

    bench.within("profile", [lambda b=batch: one(b) for batch in (max(bench.batches), 1)])  # type: ignore[misc]


def main() -> None:
    """Run the sections asked for and end with a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", default=",".join(SECTIONS), help="any of: " + ", ".join(SECTIONS))
    parser.add_argument("--out", default="h200_engine.json")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", default="{}", help="fields of the decoder other than the paper's, as JSON")
    parser.add_argument("--beam", type=int, default=50)
    parser.add_argument("--items", type=int, default=50_000)
    parser.add_argument("--pools", default="5000,50000,500000")
    parser.add_argument("--batches", default="8,32,256,1024")
    parser.add_argument("--reps", type=int, default=300, help="single queries that are timed")
    parser.add_argument("--seconds", type=float, default=90, help="after which a section starts no other case")
    parser.add_argument("--plain", action="store_true", help="without kernels in Triton, where only one way is timed")
    options = parser.parse_args()
    bench = Bench(options)
    for section in options.sections.split(","):
        start = perf_counter()
        globals()[section](bench)
        print(f"-- {section} took {perf_counter() - start:.0f} s", flush=True)
    print("\n== table")
    for section in ("check", "latency", "throughput", "pools"):
        for row in bench.found.get(section, []):
            print(section, " ".join(f"{key}={value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
