"""Speed of training: pairs a second, milliseconds a step, the decoder's TFLOP/s and what distillation adds.

    python benchmarks/train_speed.py --device cuda --out train_speed.json
    python benchmarks/train_speed.py --device cpu --scale tiny --items 600 --dim 32 --seconds 1 --batches 64

Recipe `pro` at a scale (`paper`: 6 + 6 layers of width 512, 16 levels, features of 768 numbers) on a run's vectors
(--data FOLDER) or on seeded clustered pairs of all three modalities (--data random). Every row is the median over
ROUNDS groups of steps after a warm-up, with the device waited for before and after each group; what is compared
(distillation on and off, fp32 and bf16, and on a GPU steps with and without a CUDA graph) takes turns in every round. A
step is a whole one: rows gathered on the device, losses, gradients, optimiser and, for the tokenizer, codebook averages
and revival. Before them the codebooks get one k-means iteration, not counted.

FLOPs of the decoder are 6 x parameters in use x positions they are applied to (a multiplication and an addition,
forward and twice backward): per pair, soft tokens and encoder once a soft token, decoder blocks once a code, a level's
own part of the table once, and of an attention to one position values and outputs alone, once a pair. The products of
attention over positions, norms and the optimiser are left out.

`waits` counts the operations of one step that made the host wait for the device (CUDA alone).
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count, cycle
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from siglum.config import DecoderConfig, RunConfig
from siglum.cuda_graph_step import GraphedStep
from siglum.data.vectors import load_vectors
from siglum.device import trains_in_bf16
from siglum.files import write_json
from siglum.fuse.contrastive import new_fusion
from siglum.generate.train import DecoderTraining
from siglum.loop import batches
from siglum.recipes import recipe
from siglum.scales import SCALES
from siglum.tokenize.train import Tokenizer, TokenizerTraining
from siglum.types import Features, Vectors

ROUNDS, WARM = 7, 5
"""Groups of steps that are timed, and steps before them, of every side."""
SIDES = {"without": 0.0, "with": 1.0}
"""Distillation off and on, as a share of its weight."""
Side = tuple[str, bool]
"""What a step is compared by: distillation or precision, and whether it is a CUDA graph."""
PAPER = {"epoch": 4.0 / 3.8 - 1, "of_all": 20 * (4.0 - 3.8) / (20 * 3.8 + 30 * 23)}
"""Overheads that follow from the paper's minutes an epoch: 3.8 and 4.0 for the tokenizer, 23 for the decoder."""
Step = Callable[[], Any]


def random_vectors(items: int, dim: int, seed: int = 0) -> Vectors:
    """Return clustered items of all three modalities and one query near each, some of them near the same item."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(max(8, items // 50), dim, generator=generator)
    own = torch.randint(len(centres), (items,), generator=generator)
    item = centres[own] + 0.7 * torch.randn(items, dim, generator=generator)
    target = torch.randint(items, (items,), generator=generator)
    query = item[target] + 0.5 * torch.randn(items, dim, generator=generator)
    kinds = (np.arange(items) % 3, np.arange(items) // 3 % 3)
    sides = [_features(*pair) for pair in (("x", item, kinds[0]), ("q", query, kinds[1]))]
    return Vectors(sides[0], sides[1], np.arange(items), target.numpy(), [])


def _features(prefix: str, rows_ND: Tensor, kind_N: np.ndarray) -> Features:
    rows = torch.nn.functional.normalize(rows_ND, dim=1).numpy()
    has_image, has_text = kind_N != 1, kind_N != 0
    names = [f"{prefix}{row}" for row in range(len(rows))]
    return Features(names, rows * has_image[:, None], rows * has_text[:, None], has_image, has_text)


def wait(device: str) -> None:
    """Wait until the device has done all it was given."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def group_seconds(step: Step, steps: int, device: str) -> float:
    """Return the seconds of so many steps."""
    wait(device)
    start = perf_counter()
    for _ in range(steps):
        step()
    wait(device)
    return perf_counter() - start


def time_sides(sides: dict[Side, Step], seconds: float, device: str) -> dict[Side, list[float]]:
    """Return the milliseconds a step of every round, sides in turn, in about so many seconds for each side."""
    steps = {}
    for name, step in sides.items():
        group_seconds(step, WARM, device)
        once = group_seconds(step, WARM, device) / WARM
        steps[name] = max(1, min(500, int(seconds / ROUNDS / once)))
    found: dict[Side, list[float]] = {name: [] for name in sides}
    for number in range(ROUNDS):
        for name in sorted(sides, reverse=number % 2 == 1):
            found[name].append(1e3 * group_seconds(sides[name], steps[name], device) / steps[name])
    return found


def count_waits(step: Step, device: str) -> dict[str, Any]:
    """Return how many operations of a step made the host wait, and where the first of them stand."""
    if not device.startswith("cuda"):
        return {"waits": None, "waits_at": []}
    wait(device)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    found = [one for one in heard if "synchronizing" in str(one.message)]
    return {"waits": len(found), "waits_at": [f"{Path(one.filename).name}:{one.lineno}" for one in found[:8]]}


def row_of(ms: list[float], pairs: int, step: Step, device: str, **facts: Any) -> dict[str, Any]:
    """Return one row of the result."""
    middle = median(ms)
    times = {"ms_step": middle, "ms_low": min(ms), "ms_high": max(ms), "pairs_per_s": 1e3 * pairs / middle}
    return {**facts, "batch": pairs, **times, **count_waits(step, device)}


def shuffled(num_pairs: int, size: int, device: str) -> Iterator[Tensor]:
    """Yield batches for ever, from one order that is on the device."""
    return cycle(batches(num_pairs, size, torch.Generator().manual_seed(0), device))


def graphs_of(device: str) -> tuple[bool, ...]:
    """Return the ways to run a step: without a graph and, on a GPU, with one."""
    return (False, True) if device.startswith("cuda") else (False,)


def tokenizer_steps(run: TokenizerTraining) -> dict[Side, Step]:
    """Return a step of the same training with and without distillation, each with its own graph or none."""
    config = run.config
    work, number = shuffled(len(run.pair_q), config.batch_size, run.device), count()
    run.draw_revival_rows(torch.Generator().manual_seed(0))

    def step(share: float, graphed: GraphedStep[Any]) -> None:
        run.config = run.quantizer.config = replace(config, rank_weight=share * config.rank_weight)
        run.graphed = graphed
        run.step(next(work), next(number) % (config.epochs * run.steps))

    return {
        (name, graphs): partial(step, share, GraphedStep(run.device, graphs=graphs))
        for name, share in SIDES.items()
        for graphs in graphs_of(run.device)
    }


def time_tokenizer(
    vectors: Vectors, config: RunConfig, seconds: float, device: str
) -> tuple[list[dict[str, Any]], dict[str, Any], Tokenizer]:
    """Return the tokenizer's rows, the overhead of distillation by what learns, and an untrained tokenizer.

    The overhead is that of the steps that training makes: on a GPU, of graphs.
    """
    rows, overhead = [], {}
    for learns in (True, False):
        own = replace(config.tokenizer, train_fusion=learns, kmeans_iters=1)
        run = TokenizerTraining(vectors, new_fusion(vectors, config.fusion, 0, device), own, 0, device)
        run.fusion.train(learns)
        sides, fusion = tokenizer_steps(run), "learning" if learns else "fixed"
        found = time_sides(sides, seconds, device)
        pairs = min(own.batch_size, len(run.pair_q))
        use_bf16 = learns and trains_in_bf16("fusion.precision", config.fusion.precision, device)
        precision = "bf16" if use_bf16 else "fp32"  # of the fusion module; codes and losses are fp32 always
        for side, ms in found.items():
            facts = {"part": "tokenizer", "fusion": fusion, "distillation": side[0], "precision": precision}
            rows.append(row_of(ms, pairs, sides[side], device, **facts, graphs=side[1]))
            print(line_of(rows[-1]), flush=True)
        best = graphs_of(device)[-1]
        ratios = sorted(b / a - 1 for a, b in zip(found["without", best], found["with", best], strict=True))
        overhead[fusion] = {"of_step": median(ratios), "low": ratios[0], "high": ratios[-1]}
    return rows, overhead, Tokenizer(run.fusion.eval(), run.quantizer.eval())


def flops_a_pair(config: DecoderConfig, sizes: tuple[int, ...], dim: int) -> float:
    """Return the FLOPs of a training step for one pair, as the module says."""
    wide, inner, soft, codes = config.d_model, config.heads * config.d_kv, config.soft_tokens, len(sizes)
    feed, matrix = 2 * wide * config.d_ff, wide * inner
    lone = soft == 1
    encoder = config.encoder_layers * soft * ((2 if lone else 4) * matrix + feed)
    cross = 2 * matrix if lone else 2 * matrix * soft + 2 * matrix * codes
    decoder = config.decoder_layers * (codes * (4 * matrix + feed) + cross)
    table = wide * (sum(sizes) if config.softmax == "level" else codes * (1 + sum(sizes)))
    return 6.0 * (soft * wide * dim + encoder + decoder + table)


def time_decoder(
    vectors: Vectors, tokenizer: Tokenizer, config: DecoderConfig, sizes: list[int], seconds: float, device: str
) -> list[dict[str, Any]]:
    """Return the decoder's rows, every batch in both precisions."""
    rows = []
    for size in sorted({min(size, len(vectors.pair_query)) for size in sizes}):
        steps: dict[Side, Step] = {}
        for precision in ("fp32", "bf16"):
            own = replace(config, batch_size=size, precision=precision)
            run = DecoderTraining(vectors, tokenizer, own, 0, device, None)
            run.decoder.train()
            steps |= {(precision, graphs): decoder_step(run, graphs) for graphs in graphs_of(device)}
        for side, ms in time_sides(steps, seconds, device).items():
            row = row_of(ms, size, steps[side], device, part="decoder", precision=side[0], graphs=side[1])
            work = flops_a_pair(config, run.quantizer.sizes, run.quantizer.dim)
            rows.append(row | {"tflops": row["pairs_per_s"] * work / 1e12, "mflop_a_pair": work / 1e6})
            print(line_of(rows[-1]), flush=True)
    return rows


def decoder_step(run: DecoderTraining, graphs: bool) -> Step:
    """Return a step of this training, as a graph or not."""
    work, number = shuffled(len(run.pair_q), run.config.batch_size, run.device), count()
    graphed: GraphedStep[Tensor] = GraphedStep(run.device, graphs=graphs)

    def step() -> None:
        run.graphed = graphed
        run.step(next(work), next(number) % (run.config.epochs * run.steps))

    return step


def overhead_of_all(rows: list[dict[str, Any]], config: RunConfig, fusion: str) -> dict[str, float]:
    """Return what distillation adds to tokenizer and decoder together, with the recipe's epochs and decoder batch."""
    rows = [row for row in rows if row["graphs"] == max(other["graphs"] for other in rows)]
    ms = {row["distillation"]: row["ms_step"] / row["batch"] for row in rows if row.get("fusion") == fusion}
    added = config.tokenizer.epochs * (ms["with"] - ms["without"])
    found = {}
    for precision in ("fp32", "bf16"):
        mine = [row for row in rows if row["part"] == "decoder" and row["precision"] == precision]
        own = min(mine, key=lambda row: abs(row["batch"] - config.decoder.batch_size))
        rest = config.decoder.epochs * own["ms_step"] / own["batch"]
        found[precision] = added / (config.tokenizer.epochs * ms["without"] + rest)
    return found


def line_of(row: dict[str, Any]) -> str:
    """Return a row of the printed table."""
    how = "graph" if row["graphs"] else "     "
    how += f" fusion {row['fusion']}, {row['distillation']} distillation" if "fusion" in row else ""
    reached = f"{row['tflops']:7.2f} TFLOP/s" if "tflops" in row else ""
    waits = "" if row["waits"] is None else f"{row['waits']} waits"
    speed = f"{row['ms_step']:9.2f} ms {row['pairs_per_s']:11,.0f} pairs/s"
    return f"{row['part']:9s} {row['precision']} {row['batch']:5d} {speed} {reached:15s} {waits:8s} {how}".rstrip()


def main() -> None:
    """Measure, print the table and write one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("train_speed.json"))
    parser.add_argument("--data", default="random", help="a folder of the vectors stage, or random")
    parser.add_argument("--scale", default="paper", choices=SCALES)
    parser.add_argument("--items", type=int, default=50_000, help="items and pairs of random data")
    parser.add_argument("--dim", type=int, default=768, help="numbers a feature of random data")
    parser.add_argument("--seconds", type=float, default=20.0, help="time for each row")
    parser.add_argument("--batches", default="512,2048,4096", help="the decoder's batches")
    options = parser.parse_args()
    random = options.data == "random"
    vectors = random_vectors(options.items, options.dim) if random else load_vectors(Path(options.data))[0]
    config, device = recipe("pro", options.scale), options.device
    machine = torch.cuda.get_device_name() if device.startswith("cuda") else f"{torch.get_num_threads()} CPU threads"
    told = {name: str(value) for name, value in vars(options).items() if name != "out"}
    settings = told | {"pairs": len(vectors.pair_query)}
    facts = {"machine": machine, "torch": torch.__version__, "rounds": ROUNDS, "settings": settings}
    rows, overhead, tokenizer = time_tokenizer(vectors, config, options.seconds, device)
    for size in map(int, options.batches.split(",")):  # what was measured is kept if the next batch does not end
        write_json(options.out, {**facts, "rows": rows, "distillation": {**overhead, "paper": PAPER}})
        rows += time_decoder(vectors, tokenizer, config.decoder, [size], options.seconds, device)
    for fusion, found in overhead.items():
        found["of_all"] = overhead_of_all(rows, config, fusion)
        span = f"{100 * found['low']:+.1f} to {100 * found['high']:+.1f}"
        whole = ", ".join(f"{100 * share:+.2f} % ({name} decoder)" for name, share in found["of_all"].items())
        print(f"distillation, fusion {fusion}: {100 * found['of_step']:+.1f} % of a step ({span}); of all: {whole}")
    write_json(options.out, {**facts, "rows": rows, "distillation": {**overhead, "paper": PAPER}})
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
