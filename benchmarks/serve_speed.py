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
import json
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from servelib.load import Result, many_clients, multipart, run_fast
from servelib.server import Server, write_result

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as `siglum` has it, and before torch is there
ROUNDS = 5
"""Every figure is the best of so many rounds, in turn with the others: other work on the machine only takes away."""


def features_of(run: str, number: int) -> dict[str, np.ndarray]:
    """Return features of queries: of the run's own tasks, over and over if they are few."""
    from siglum.data.vectors import load_vectors
    from siglum.run.folder import RunFolder

    vectors, _ = load_vectors(RunFolder(Path(run)).vectors)
    queries = vectors.queries
    rows = np.random.default_rng(0).permutation(len(queries))[np.arange(number) % len(queries)]
    parts = {"image": (queries.image, queries.has_image), "text": (queries.text, queries.has_text)}
    arrays = {}
    for name, (values, there) in parts.items():
        if values.shape[1]:
            found = values[rows].astype("<f2")
            found[~there[rows].astype(bool)] = np.nan
            arrays[name] = found
    return arrays


class Alone:
    """The library without a service around it."""

    def __init__(self, asked: argparse.Namespace, mode: str, arrays: dict[str, np.ndarray]) -> None:
        """Load the run."""
        import siglum

        self.retriever, self.mode = siglum.Retriever.load(asked.run, device=asked.device), mode
        self.arrays, self.seconds = arrays, asked.seconds
        self.features: Callable[[dict[str, np.ndarray]], Any] = siglum.features

    def rate(self, size: int) -> float:
        """Return queries a second in batches of this size."""
        number = len(next(iter(self.arrays.values()))) // size
        batches = [{name: rows[n * size : (n + 1) * size] for name, rows in self.arrays.items()} for n in range(number)]
        self.search(batches[0])
        begun, done = time.perf_counter(), 0
        while time.perf_counter() - begun < self.seconds:
            self.search(batches[done % number])
            done += 1
        return done * size / (time.perf_counter() - begun)

    def search(self, batch: dict[str, np.ndarray]) -> None:
        """Search for one batch."""
        self.retriever.search_features(self.features(batch), k=10, mode=self.mode)


def measure(asked: argparse.Namespace, mode: str, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Measure the engine and the service in one mode, in turn."""
    bodies = []
    for start in range(0, 64 * asked.queries, asked.queries):
        part = {name: rows[start : start + asked.queries] for name, rows in arrays.items()}
        bodies.append(multipart({"queries": [{}], "k": 10, "mode": mode}, part))
    alone, rates, served = Alone(asked, mode, arrays), dict[int, float](), dict[int, Result]()
    with Server(asked.run, "--read-only", "--batch", str(asked.batch), "--device", asked.device) as server:
        run_fast(many_clients(server.address, bodies, 4, 2.0))  # warm
        for _ in range(ROUNDS):
            for clients in asked.clients:
                size = clients * asked.queries
                rates[size] = max(rates.get(size, 0.0), alone.rate(size))
                found = load(server.address, bodies, clients, asked)
                if clients not in served or found.rate > served[clients].rate:
                    served[clients] = found
    told: dict[str, Any] = {
        "engine": {f"batch {size}": round(rate, 1) for size, rate in rates.items()},
        "service": {f"{clients} clients": one.told(asked.queries) for clients, one in served.items()},
    }
    if {1, 32} <= set(served):
        service, engine = served[32].rate / served[1].rate, rates[32 * asked.queries] / rates[asked.queries]
        told["batch_gain"] = {
            "service": round(service, 2),
            "engine": round(engine, 2),
            "kept": round(service / engine, 3),
        }
    return told


def load(address: str, bodies: list[Any], clients: int, asked: argparse.Namespace) -> Result:
    """Send from some processes at once."""
    count = max(1, min(asked.processes, clients))
    if count == 1:
        return run_fast(many_clients(address, bodies, clients, asked.seconds))
    with multiprocessing.get_context("spawn").Pool(count) as pool:
        shares = [clients // count + (place < clients % count) for place in range(count)]
        parts = pool.starmap(_worker, [(address, bodies, share, asked.seconds) for share in shares])
    return Result.joined(parts)


def _worker(address: str, bodies: list[Any], clients: int, seconds: float) -> Result:
    return run_fast(many_clients(address, bodies, clients, seconds))


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", default="runs/demo")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--modes", nargs="+", default=["exact", "scan"])
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 16, 32])
    parser.add_argument("--queries", type=int, default=1, help="queries a request")
    parser.add_argument("--batch", type=int, default=64, help="queries the engine takes at once")
    parser.add_argument("--processes", type=int, default=1, help="processes that send")
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--out", default="")
    asked = parser.parse_args()
    arrays = features_of(asked.run, max(64, max(asked.clients)) * asked.queries)
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
