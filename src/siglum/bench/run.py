"""Running the units of a benchmark, several at a time if asked, spaces first."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from time import perf_counter

from siglum.bench.captions import Bench, is_done, run_unit
from siglum.types import SiglumError, Vectors


def run_units(
    bench: Bench,
    units: Iterable[str],
    seeds: int,
    jobs: int,
    limit: float,
    vectors: Vectors,
    say: Callable[[str], None],
) -> tuple[list[Path], list[str]]:
    """Run what is missing; return the parts there are and the names of those that are not.

    `dense` of every seed comes first, since the other units share its space, then `best`, which takes longest.
    """
    order = {"dense": 0, "best": 1}
    wanted = sorted(((unit, seed) for unit in units for seed in range(seeds)), key=lambda w: (order.get(w[0], 2), w[1]))
    todo = [(unit, seed) for unit, seed in wanted if not is_done(bench, unit, seed, vectors)]
    if len(todo) < len(wanted):
        say(f"{len(wanted) - len(todo)} of {len(wanted)} trainings are there already")
    started = perf_counter()
    for stage in ([w for w in todo if w[0] == "dense"], [w for w in todo if w[0] != "dense"]):
        for number, (unit, seed) in enumerate(_each(bench, stage, jobs, limit, started)):
            say(f"{unit}, seed {seed}: done ({number + 1} of {len(stage)}, {perf_counter() - started:.0f} s)")
    there = [(unit, seed) for unit, seed in wanted if is_done(bench, unit, seed, vectors)]
    missing = [f"{unit}-{seed}" for unit, seed in wanted if (unit, seed) not in there]
    return [bench.part(unit, seed) for unit, seed in there], missing


def _each(
    bench: Bench, work: list[tuple[str, int]], jobs: int, limit: float, started: float
) -> Iterator[tuple[str, int]]:
    """Run the work and yield each unit when it is done; none is started after the limit."""
    if jobs == 1 or len(work) < 2:
        for unit, seed in work:
            if limit and perf_counter() - started > limit:
                return
            run_unit(bench, unit, seed)
            yield unit, seed
        return
    with ProcessPoolExecutor(min(jobs, len(work)), mp_context=multiprocessing.get_context("spawn")) as pool:
        left, asked = limit - (perf_counter() - started) if limit else 0.0, perf_counter()
        futures = {pool.submit(_run_in_time, bench, *which, left, asked): which for which in work}
        try:
            for future in as_completed(futures):
                if future.result():
                    yield futures[future]
        except BrokenProcessPool as error:
            raise SiglumError(
                f"a training was ended from outside, perhaps for memory; try --jobs {jobs // 2}."
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)  # after an error, what has not begun would run for hours unseen


def _run_in_time(bench: Bench, unit: str, seed: int, left: float, asked: float) -> bool:
    """Run a unit in a process of its own unless its time is over; one thread, since its neighbours need the rest."""
    import torch

    if left and perf_counter() - asked > left:
        return False
    torch.set_num_threads(1)
    run_unit(bench, unit, seed)
    return True
