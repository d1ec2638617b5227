"""Seconds and peak memory of all that `siglum diagnose` measures without a decoder, on a seeded synthetic pool.

    python benchmarks/diagnose_speed.py --items 25000 --queries 5000 --levels 16 --dim 768

Items lie around cluster centres and a query near its item; codes are residual, in the paper's vocabulary 4 x 512,
8 x 1024, 4 x 2048. Coding the pool is not counted.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from time import perf_counter, process_time

import torch
import torch.nn.functional as F
from torch import Tensor

from siglum.measure.retention import QueryBatch, survey
from siglum.tokenize.kmeans import nearest
from siglum.tokenize.schedule import ascending


def make_pool(items: int, queries: int, dim: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return unit items (N, D), unit queries (Q, D) and the targets (Q,)."""
    centres = torch.randn(max(1, items // 50), dim, generator=generator)
    own = torch.randint(0, len(centres), (items,), generator=generator)
    item_ND = F.normalize(centres[own] + 0.7 * torch.randn(items, dim, generator=generator), dim=1)
    target_Q = torch.randint(0, items, (queries,), generator=generator)
    noise = torch.randn(queries, dim, generator=generator) / dim**0.5
    return item_ND, F.normalize(item_ND[target_Q] + noise, dim=1), target_Q


def code_pool(item_ND: Tensor, sizes: list[int], generator: torch.Generator) -> tuple[list[Tensor], Tensor]:
    """Return codebooks and codes (N, T) of residual k-means."""
    residual, books, codes = item_ND.clone(), [], []
    for size in sizes:
        start = residual[torch.randperm(len(residual), generator=generator)[:size]]
        near = nearest(residual, start)
        count = torch.bincount(near, minlength=size).clamp(min=1)
        books.append(torch.zeros_like(start).index_add_(0, near, residual) / count[:, None])
        codes.append(nearest(residual, books[-1]))
        residual -= books[-1][codes[-1]]
    return books, torch.stack(codes, 1)


def main() -> None:
    """Measure and write one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("items", 25_000), ("queries", 5_000), ("levels", 16), ("dim", 768), ("beam", 50)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--chunk", type=int, default=64, help="queries worked on at once")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    generator = torch.Generator().manual_seed(0)
    item_ND, query_QD, target_Q = make_pool(options.items, options.queries, options.dim, generator)
    books, codes_NT = code_pool(item_ND, list(ascending(options.levels)), generator)
    before, start, cpu = _peak(), perf_counter(), process_time()
    asked = QueryBatch(books, 0, codes_NT, item_ND, query_QD, target_Q)
    found = survey(asked, beam=options.beam, tau=0.05, chunk=options.chunk)
    result = {
        **vars(options),
        "seconds": round(perf_counter() - start, 1),
        "cpu_seconds": round(process_time() - cpu, 1),
        "peak_mb": round(_peak()),
        "peak_mb_before": round(before),
        "prefixes": [one.prefixes for one in found.levels],
        "survival": {rung.name: round(rung.survival[-1], 4) for rung in found.rungs},
        "torch": torch.__version__,
    }
    sys.stdout.write(json.dumps(result) + "\n")


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
