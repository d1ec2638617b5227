"""What serving costs: requests over HTTP beside the engine alone, one by one and in batches.

On two cores it measures what batching keeps of the engine's own gain, and latency:

    python benchmarks/serve_speed.py --run runs/demo --out benchmarks/results/serve/speed.json

On one GPU, a run of the paper's model with 50,000 items, binary features, 16 queries a request:

    python benchmarks/serve_speed.py --run runs/paper --device cuda --modes exact --clients 1 16 32 256 --queries 16 \
        --processes 8 --out benchmarks/results/serve/h200.json

Clients are processes that speak plain HTTP over one connection each and send frozen features as float16, so that
neither they nor the encoder of texts is what is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import platform
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from servelib.load import Result, many_clients, multipart
from servelib.server import Server, write_result

ROUNDS = 3


def features_of(run: str, number: int) -> tuple[Any, dict[str, np.ndarray]]:
    """Return a retriever of a run and features of queries: of its own tasks, over and over if they are few."""
    from siglum.data.vectors import load_vectors
    from siglum.run.folder import RunFolder
    from siglum.search.retriever import Retriever

    vectors, _ = load_vectors(RunFolder(Path(run)).vectors)
    queries = vectors.queries
    rows = np.arange(number) % len(queries)
    parts = {"image": (queries.image, queries.has_image), "text": (queries.text, queries.has_text)}
    arrays = {}
    for name, (values, there) in parts.items():
        if values.shape[1]:
            found = values[rows].astype("<f2")
            found[~there[rows].astype(bool)] = np.nan
            arrays[name] = found
    return Retriever, arrays


def engine_rates(run: str, mode: str, device: str, arrays: dict[str, np.ndarray], sizes: list[int]) -> dict[str, float]:
    """Return queries a second of the library alone, in batches of these sizes."""
    import siglum

    retriever = siglum.Retriever.load(run, device=device)
    rates = {}
    for size in sizes:
        batches = [{n: rows[start : start + size] for n, rows in arrays.items()} for start in range(0, 8 * size, size)]
        for batch in batches[:2]:
            retriever.search_features(siglum.features(batch), k=10, mode=mode)
        begun, done = time.perf_counter(), 0
        while time.perf_counter() - begun < 3:
            retriever.search_features(siglum.features(batches[done % 8]), k=10, mode=mode)
            done += 1
        rates[str(size)] = round(done * size / (time.perf_counter() - begun), 1)
    return rates


def measure(asked: argparse.Namespace, mode: str, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Measure the engine and the service in one mode."""
    bodies = []
    for start in range(0, 64 * asked.queries, asked.queries):
        part = {name: rows[start : start + asked.queries] for name, rows in arrays.items()}
        bodies.append(multipart({"queries": [{}], "k": 10, "mode": mode}, part))
    found: dict[str, Any] = {"engine": engine_rates(asked.run, mode, asked.device, arrays, [1, 32, asked.batch])}
    with Server(asked.run, "--read-only", "--batch", str(asked.batch), "--device", asked.device) as server:
        asyncio.run(many_clients(server.address, bodies, 4, 2.0))  # warm
        for clients in asked.clients:
            runs = [load(server.address, bodies, clients, asked) for _ in range(ROUNDS)]
            best = sorted(runs, key=lambda one: one.rate)[ROUNDS // 2]
            found[f"{clients} clients"] = best.told(asked.queries)
    rates, own = {name: one["queries_per_second"] for name, one in found.items() if "clients" in name}, found["engine"]
    if {"1 clients", "32 clients"} <= set(rates):
        service, engine = rates["32 clients"] / rates["1 clients"], own["32"] / own["1"]
        found["ratio"] = {"service": round(service, 2), "engine": round(engine, 2), "kept": round(service / engine, 3)}
    return found


def load(address: str, bodies: list[Any], clients: int, asked: argparse.Namespace) -> Result:
    """Send from some processes at once."""
    count = max(1, min(asked.processes, clients))
    if count == 1:
        return asyncio.run(many_clients(address, bodies, clients, asked.seconds))
    with multiprocessing.get_context("spawn").Pool(count) as pool:
        shares = [clients // count + (place < clients % count) for place in range(count)]
        parts = pool.starmap(_worker, [(address, bodies, share, asked.seconds) for share in shares])
    return Result.joined(parts)


def _worker(address: str, bodies: list[Any], clients: int, seconds: float) -> Result:
    return asyncio.run(many_clients(address, bodies, clients, seconds))


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", default="runs/demo")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--modes", nargs="+", default=["exact", "scan"])
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 4, 16, 32])
    parser.add_argument("--queries", type=int, default=1, help="queries a request")
    parser.add_argument("--batch", type=int, default=64, help="queries the engine takes at once")
    parser.add_argument("--processes", type=int, default=1, help="processes that send")
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--out", default="")
    asked = parser.parse_args()
    _, arrays = features_of(asked.run, 64 * max(asked.queries, asked.batch))
    from siglum.search.retriever import Retriever

    found: dict[str, Any] = {
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": multiprocessing.cpu_count()},
        "run": Path(asked.run).name,
        "items": len(Retriever.load(asked.run)),
        "queries_per_request": asked.queries,
        "batch": asked.batch,
        "modes": {mode: measure(asked, mode, arrays) for mode in asked.modes},
    }
    print(json.dumps(found, indent=1))
    write_result(asked.out, found)


if __name__ == "__main__":
    main()
