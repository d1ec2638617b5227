"""Speed, bytes and peak memory of the index on random codes, at every size given.

    python benchmarks/index_speed.py --items 1000000,10000000

Codes are the paper's: a modality token and 4 x 512, 8 x 1024, 4 x 2048. Building and searching run in a process of
their own each, on one thread; the search is a beam by geometry over the mapped index, for queries that lie on items.
Times are CPU seconds; one JSON line a size.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch

from siglum.index import Index
from siglum.index.ids import Ids
from siglum.search.beam import search_items
from siglum.search.scorers import GeometryScorer

SIZES = (3,) + (512,) * 4 + (1024,) * 8 + (2048,) * 4


def main() -> None:
    """Measure every size and write one JSON line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", default="100000,1000000", help="sizes, separated by commas")
    for name, value in (("add", 1000), ("queries", 256), ("beam", 50), ("batch", 64), ("dim", 32), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--part", choices=["build", "search"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part is not None:
        part = measure_build if options.part == "build" else measure_search
        sys.stdout.write(json.dumps(part(options, int(options.items))))
        return
    for items in options.items.split(","):
        with tempfile.TemporaryDirectory() as folder:
            found = {"items": int(items)} | _apart("build", items, folder) | _apart("search", items, folder)
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


def _apart(part: str, items: str, folder: str) -> dict[str, Any]:
    """Return what one part measures in a fresh process; the last of an option's values counts."""
    command = [sys.executable, *sys.argv, "--items", items, "--part", part, "--folder", folder]
    return dict(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))


def draw_codes(items: int, rng: np.random.Generator) -> np.ndarray:
    """Return random codes, int16 (N, L)."""
    codes_NL = np.empty((items, len(SIZES)), np.int16)
    for level, size in enumerate(SIZES):
        codes_NL[:, level] = rng.integers(0, size, items, dtype=np.int16)
    return codes_NL


def measure_build(options: argparse.Namespace, items: int) -> dict[str, Any]:
    """Build, add, remove and save."""
    rng = np.random.default_rng(0)
    codes_NL, new_ML = draw_codes(items, rng), draw_codes(options.add, rng)
    names, new = [f"item-{i}" for i in range(items)], [f"new-{i}" for i in range(options.add)]
    inputs = _peak()
    ids_s, _ = _best(options.rounds, lambda: Ids.of(names))
    build_s, index = _best(options.rounds, lambda: Index.build(names, codes_NL, SIZES, "none"))
    built = _peak()
    add_s, grown = _best(options.rounds, lambda: index.add(new, new_ML))
    remove_s, again = _best(options.rounds, lambda: grown.remove(new))
    assert np.array_equal(again.packed_NB, index.packed_NB)
    assert np.array_equal(again.order_NW, index.order_NW)
    save_s, _ = _best(1, lambda: index.save(options.folder))
    ids_bytes = index.ids.blob.nbytes + index.ids.offsets.nbytes
    return {
        "build_us_an_item": round(1e6 * build_s / items, 3),
        "build_us_an_item_without_ids": round(1e6 * (build_s - ids_s) / items, 3),
        "bytes_an_item": {
            "codes_and_trie": index.packed_NB.nbytes / items,
            "order": index.order_NW.nbytes / items,
            "ids": round(ids_bytes / items, 2),
        },
        f"add_{options.add}_ms": round(1e3 * add_s, 1),
        f"remove_{options.add}_ms": round(1e3 * remove_s, 1),
        "save_s": round(save_s, 2),
        "peak_mb": {"inputs": inputs, "build": built, "add_remove_save": _peak()},
    }


def measure_search(options: argparse.Namespace, items: int) -> dict[str, Any]:
    """Map the index, search it, and add to it."""
    torch.set_num_threads(1)
    start = _peak()
    load_s, index = _best(1, lambda: Index.load(options.folder))
    generator = torch.Generator().manual_seed(0)
    scales = [0.5 ** min(level, 6) for level in range(len(SIZES))]
    books = [
        scale * torch.randn(size, options.dim, generator=generator) for scale, size in zip(scales, SIZES, strict=True)
    ]
    rows = np.linspace(0, items - 1, options.queries).astype(np.int64)
    codes_QL = torch.as_tensor(index.codes(rows)).long()
    query_QD = torch.stack([book[codes_QL[:, level]] for level, book in enumerate(books)]).sum(0)

    def search() -> float:
        found = search_items(
            GeometryScorer(books), index, query_QD, beam=options.beam, k=options.beam, batch_size=options.batch
        )
        return float(np.mean([row in ranking.row for row, ranking in zip(rows, found, strict=True)]))

    first_s, found = _best(1, search)
    search_s, _ = _best(options.rounds, search)
    searched = _peak()
    rng = np.random.default_rng(1)
    new, new_ML = [f"new-{i}" for i in range(options.add)], draw_codes(options.add, rng)
    add_s, _ = _best(1, lambda: index.add(new, new_ML))
    return {
        "load_ms": round(1e3 * load_s, 1),
        "queries_per_s": round(options.queries / search_s, 1),
        "first_search_queries_per_s": round(options.queries / first_s, 1),
        "target_found": round(found, 3),
        f"add_{options.add}_after_load_ms": round(1e3 * add_s, 1),
        "search_peak_mb": {"start": start, "search": searched},
    }


def _best(rounds: int, work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the fewest CPU seconds of some rounds, and the result."""
    seconds = []
    for _ in range(rounds):
        start = process_time()
        result = work()
        seconds.append(process_time() - start)
    return min(seconds), result


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    main()
