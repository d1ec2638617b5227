"""How long a change of a large index takes until it is acknowledged, and what compaction does to searches meanwhile.

    python benchmarks/update_speed.py --items 10000000 --out benchmarks/results/speed/updates.json

Codes are random and given; the index lies mapped on the local disk. Every change is logged, synced and seen by the next
search. Compaction runs in a process of its own of the lowest priority, once by itself and then on request.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from index_speed import SIZES, draw_codes

from siglum.files import write_json
from siglum.index import Index
from siglum.run import live as live_module
from siglum.run.generations import open_index, replace_index
from siglum.run.live import LiveIndex
from siglum.search.beam import search_items
from siglum.search.scorers import GeometryScorer


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=10_000_000)
    parser.add_argument("--add", type=int, default=1000, help="items a change")
    parser.add_argument("--changes", type=int, default=200, help="changes that are timed")
    parser.add_argument("--queries", type=int, default=400, help="searches timed while nothing else happens")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--beam", type=int, default=50)
    parser.add_argument("--folder", type=Path, default=None, help="where the index is written; a temporary folder")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="siglum-updates-"))
    try:
        result = {"items": options.items, "items_a_change": options.add, **measure(options, folder / "4-index")}
    finally:
        if options.folder is None:
            shutil.rmtree(folder)
    if options.out is not None:
        write_json(options.out, result)
    print(json.dumps(result, indent=1))


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Time changes and searches."""
    rng = np.random.default_rng(0)
    names = [f"item-{i}" for i in range(options.items)]
    replace_index(folder, Index.build(names, draw_codes(options.items, rng), SIZES, "none"))
    del names
    ask = searcher(options, open_index(folder).index)
    found, begun = {}, time.perf_counter()
    with LiveIndex(folder) as live:
        opened = time.perf_counter() - begun
        live.background, often = True, live_module.FLUSH

        def search() -> None:
            ask(live.index)

        fresh = [[f"new-{turn}-{place}" for place in range(options.add)] for turn in range(options.changes + 200)]
        given = iter([(names, draw_codes(options.add, rng)) for names in fresh])

        def add() -> None:
            live.add(*next(given))

        timed(search, 20)
        found["idle"] = timed(search, options.queries)
        adds = timed(add, options.changes)  # compaction comes by itself
        live.compact()
        live_module.FLUSH = 1 << 62  # from here on only when it is asked for
        timed(add, often // options.add)
        removes = timed(lambda: live.remove(live.index.ids[-100:]), 20)
        found["over a layer in memory"] = timed(search, options.queries)
        found["while it is written as a segment"], layer_s = beside(live.compact, search)
        found["over a layer on disk"] = timed(search, options.queries)
        timed(add, 3)
        found["while all is written in one piece"], whole_s = beside(lambda: live.compact(whole=True), search)
        found["after that"] = timed(search, options.queries)
        found["while another thread adds"], _ = beside(lambda: timed(add, 50), search)
    return {
        "open_for_writing_s": round(opened, 2),
        "add_ms": spread(adds),
        "remove_100_ms": spread(removes),
        "search_ms": {name: spread(times) for name, times in found.items()},
        "compaction_s": {"layer": round(layer_s, 2), "whole": round(whole_s, 2)},
    }


def searcher(options: argparse.Namespace, index: Index) -> Callable[[Index], None]:
    """Return a search of one query by geometry, each time of another one that lies on an item."""
    generator = torch.Generator().manual_seed(0)
    books = [
        0.5 ** min(level, 6) * torch.randn(size, options.dim, generator=generator) for level, size in enumerate(SIZES)
    ]
    rows = np.random.default_rng(1).integers(0, len(index), 512)
    codes_QL = torch.as_tensor(index.codes(rows)).long()
    query_QD = torch.stack([book[codes_QL[:, level]] for level, book in enumerate(books)]).sum(0)
    scorer, turn = GeometryScorer(books), itertools.count()

    def ask(now: Index) -> None:
        place = next(turn) % len(query_QD)
        search_items(scorer, now, query_QD[place : place + 1], beam=options.beam, k=10)

    return ask


def timed(work: Callable[[], None], times: int) -> list[float]:
    """Return the milliseconds of every call."""
    found = []
    for _ in range(times):
        begun = time.perf_counter()
        work()
        found.append(1e3 * (time.perf_counter() - begun))
    return found


def beside(work: Callable[[], object], search: Callable[[], None]) -> tuple[list[float], float]:
    """Return the milliseconds of searches for as long as other work goes on in a thread, and the seconds of that."""
    thread, found, begun = threading.Thread(target=work), [], time.perf_counter()
    thread.start()
    while thread.is_alive():
        found += timed(search, 1)
    return found, time.perf_counter() - begun


def spread(times: list[float]) -> dict[str, float]:
    """Return median, 99th percentile and maximum."""
    middle, high = np.percentile(times, [50, 99])
    return {"p50": round(middle, 2), "p99": round(high, 2), "max": round(max(times), 2), "calls": len(times)}


if __name__ == "__main__":
    main()
