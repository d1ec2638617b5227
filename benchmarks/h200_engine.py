"""Static-shape search on one GPU: equal to the reference search, and how fast, section by section.

    python benchmarks/h200_engine.py --sections check,ceiling,latency,throughput,pools,profile --out h200_engine.json

The paper-size model (6 + 6 layers, width 512, 17 codes) with seeded random weights over seeded clustered vectors that
residual k-means codes, of the kind that `siglum bench speed` draws. Every section writes what it found at once and
stops after --seconds.
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
import torch.nn.functional as F
from torch import Tensor

from siglum.config import DecoderConfig, SearchConfig
from siglum.generate.decoder import CodeDecoder
from siglum.index import Index
from siglum.search.beam import Ranking, search_items
from siglum.search.cuda import GraphSearch, Plan
from siglum.search.scorers import build_scorer

SIZES = (3, *[512] * 4, *[1024] * 8, *[2048] * 4)
DIM, SUBSPACE, K = 768, 96, 50
FLOPS_A_TOKEN = 2 * 18.9e6
SECTIONS = ("check", "ceiling", "latency", "throughput", "pools", "profile")


class World:
    """Codebooks, queries and an index of clustered vectors with a share of near-duplicates."""

    def __init__(self, items: int, device: str, near: float = 0.0, queries: int = 4096, seed: int = 0) -> None:
        """Draw, code and index."""
        torch.manual_seed(seed)
        basis = torch.linalg.qr(torch.randn(DIM, SUBSPACE, device=device)).Q.T
        length = torch.arange(1, SUBSPACE + 1, device=device) ** -0.5

        def noise(number: int) -> Tensor:
            return length * torch.randn(number, SUBSPACE, device=device)

        coarse = noise(max(8, items // 2000))
        fine = coarse[torch.randint(len(coarse), (max(16, items // 50),), device=device)]
        fine = fine + 0.8 * noise(len(fine))
        vectors = F.normalize(fine[torch.randint(len(fine), (items,), device=device)] + 0.6 * noise(items), dim=1)
        copies = torch.randperm(items, device=device)[: int(near * items)]
        source = torch.randint(items, (len(copies),), device=device)
        vectors[copies] = F.normalize(vectors[source] + 0.003 * noise(len(copies)), dim=1)
        target = torch.randint(items, (queries,), device=device)
        aside = torch.randn(queries, SUBSPACE, device=device) / SUBSPACE**0.5
        self.query = F.normalize(vectors[target] + 0.7 * aside, dim=1) @ basis
        books, codes = code(vectors)
        self.books = [book @ basis for book in books]
        kind = torch.randint(3, (items, 1), device=device)
        whole = torch.cat([kind, codes], 1).cpu().numpy()
        self.index = Index.build([str(i) for i in range(items)], whole, SIZES, "bench")


def code(vector_ND: Tensor, iterations: int = 4, sample: int = 100_000) -> tuple[list[Tensor], Tensor]:
    """Return codebooks, the modality's all zeros, and codes (N, 16) of residual k-means."""
    residual, codes = vector_ND.clone(), []
    books = [torch.zeros(SIZES[0], vector_ND.shape[1], device=vector_ND.device)]
    for size in SIZES[1:]:
        some = residual[torch.randperm(len(residual), device=residual.device)[:sample]]
        book = some[torch.randint(len(some), (size,), device=some.device)].clone()
        for _ in range(iterations):
            near = nearest(some, book)
            count = torch.bincount(near, minlength=size)
            mean = torch.zeros_like(book).index_add_(0, near, some) / count.clamp(min=1)[:, None]
            book = torch.where((count > 0)[:, None], mean, book)
        codes.append(nearest(residual, book))
        residual -= book[codes[-1]]
        books.append(book)
    return books, torch.stack(codes, 1)


def nearest(vector_ND: Tensor, book_VD: Tensor) -> Tensor:
    """Return the nearest codeword of every vector."""
    half = book_VD.square().sum(1) / 2
    return torch.cat([(part @ book_VD.t() - half).argmax(1) for part in vector_ND.split(65_536)])


class Bench:
    """The model, the pools and what was found so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Draw the model."""
        self.device, self.out, self.seconds = options.device, Path(options.out), options.seconds
        config = DecoderConfig(**json.loads(options.model))
        self.decoder = CodeDecoder(config, SIZES, DIM, torch.Generator().manual_seed(0)).eval().to(self.device)
        self.config = SearchConfig(beam=options.beam)
        self.items, self.pools, self.reps = options.items, [int(n) for n in options.pools.split(",")], options.reps
        self.fused = not options.plain
        self.batches = [int(n) for n in options.batches.split(",")]
        self.worlds: dict[tuple[int, float], World] = {}
        self.found: dict[str, Any] = {"torch": torch.__version__, "device": device_name(self.device)}

    def world(self, items: int, near: float = 0.0) -> World:
        """Return a pool, made when first asked for."""
        if (items, near) not in self.worlds:
            self.worlds[items, near] = World(items, self.device, near)
        return self.worlds[items, near]

    def engine(self, world: World, config: SearchConfig | None = None, **options: Any) -> GraphSearch:
        """Return an engine on a pool."""
        found = GraphSearch(self.decoder, world.books, world.index, config or self.config, 1, self.device, **options)
        found.learn(world.query[-256:])
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
        query = world.query[:32]
        if (pool, omega) not in known:
            scorer = build_scorer(config, world.books, bench.decoder, 1)
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
    host = world.query.cpu()

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
        inner = timed(lambda: engine._find(engine.engine, world.query[:1], chosen, K), bench.reps // 4, bench.device)
        over = np.mean([float(engine.engine.find(part, chosen, K).over_Q[0]) for part in world.query[:32].split(1)])
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
        bench.note("throughput", omega=omega, way=name, **told, **speed(bench, engine, world.query, batch))

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
        bench.note("pools", items=items, near=near, **speed(bench, engine, world.query, max(bench.batches)))

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
        query, plan = world.query[:batch], engine.plan(batch)
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
