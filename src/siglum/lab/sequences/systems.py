"""The systems of the benchmark on sequences, each measured for one seed; every unit goes on where it was stopped.

Shapes: Q users asked, K items of a list, N items, D numbers a vector.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from siglum.config import RunConfig, SearchConfig, as_dict
from siglum.data.histories import history_vectors
from siglum.data.sequence_files import read_sequences
from siglum.data.sequences import Sequences, SplitEvents, split_events
from siglum.data.vectors import load_vectors
from siglum.generate.decoder import CodeDecoder
from siglum.lab.experiments.machine import describe_machine
from siglum.lab.sequences.sasrec import SasRec, fit_sasrec, trials
from siglum.lab.units import Part
from siglum.measure.diagnose import diagnose
from siglum.recommend.evaluation import DEPTH, most_popular, nearest_to
from siglum.recommend.fitting import CHOSEN, fit_run, prepare
from siglum.recommend.measures import UsersAsked, drop_seen, means, measure_lists, ranks_of
from siglum.recommend.recommender import Recommender
from siglum.recommend.validation import (
    HistorySearch,
    choose_fusion,
    dense_top,
    targets_of,
    validation_task,
)
from siglum.recommenders import fit_to_items, fit_to_parts, recommender
from siglum.rootfiles import read_kept_json
from siglum.run.folder import RunFolder
from siglum.run.lock import lock_run
from siglum.tokenize.disambiguate import count_equal
from siglum.types import SiglumError, Task, Vectors

UNITS: dict[str, tuple[str, ...]] = {
    "plain": ("popularity", "last_item"),
    "sasrec": ("sasrec",),
    "tiger": ("tiger",),
    "tiger_strong": ("tiger_strong", "bridge"),
    "liger": ("dense", "liger"),
    "pro": ("pro", "pro_without_sf"),
    "pro_without_pd": ("pro_without_pd",),
    "pro_without_vs": ("pro_without_vs",),
    "held_out": ("held_out.tiger_strong",),
    "held_out_pro": ("held_out.pro", "held_out.dense"),
}
"""Trainings, and the systems that each measures."""
KEPT_FROM = {"held_out": "tiger_strong", "held_out_pro": "pro"}
"""Units that keep items from training and add them afterwards, with their recipes."""
HELD_OUT = 0.05
"""Share of the items that they keep."""
JOIN = 60
"""What reciprocal rank fusion adds to ranks."""
TIMED = 30
"""Histories that latency is measured on, one by one."""


@dataclass(frozen=True, slots=True)
class SequenceSetting:
    """Where a unit finds its data and leaves its work."""

    data: str
    out: Path
    scale: str
    seed: int
    device: str
    split: str = "leave_one_out"
    made_of: str = ""
    """What data, settings and sources are, so that other ones go on with no training of these."""

    def read(self) -> tuple[Sequences, SplitEvents]:
        """Read the sequences, their items in the order of this seed."""
        sequences = read_sequences(Path(self.data), seed=self.seed)
        if sequences.features is None:
            raise SiglumError(f"{self.data} has no features of its items, such as text_features.npy.")
        return sequences, split_events(sequences, self.split)

    def folder(self, unit: str) -> Path:
        """Return where a unit's trainings go on."""
        return self.out / "runs" / f"{unit}-{self.seed}-{self.made_of}"

    def config(self, unit: str, sequences: Sequences, targets: int) -> RunConfig:
        """Return the settings of a recipe, fitted to the data."""
        assert sequences.features is not None
        config = fit_to_items(recommender(unit, self.scale, self.seed), sequences.features, targets)
        return fit_to_parts(config, sequences.features)


def measure_unit(setting: SequenceSetting, unit: str) -> Part:
    """Train and measure a unit."""
    begun = perf_counter()
    sequences, split = setting.read()
    if unit in KEPT_FROM:
        found = _held_out(setting, unit, sequences, split)
    else:
        make = {"plain": _plain, "sasrec": _sasrec}.get(unit)
        found = _generative(setting, unit, sequences, split) if make is None else make(setting, sequences, split)
    machine = describe_machine(setting.device)
    return {"unit": unit, "seed": setting.seed, "machine": machine, "total": perf_counter() - begun, **found}


def users_of(sequences: Sequences, split: SplitEvents, codes_NT: np.ndarray | None = None) -> UsersAsked:
    """Return the test users, exactly as the sequences have them."""
    first = sequences.offset_U[np.searchsorted(sequences.offset_U, split.test, side="right") - 1]
    seen = [np.unique(sequences.row_E[a:b]) for a, b in zip(first.tolist(), split.test.tolist(), strict=True)]
    count_N = np.bincount(sequences.row_E[split.learnt_E], minlength=len(sequences.items))
    return UsersAsked(sequences.row_E[split.test], seen, count_N, codes_NT)


def system_part(top_QK: np.ndarray, asked: UsersAsked) -> dict[str, Any]:
    """Return what a part keeps of one system: its measures, and every user's rank under both policies."""
    unseen = drop_seen(top_QK, asked.seen)
    return {
        "measures": measure_lists(top_QK, asked),
        "ranks": ranks_of(top_QK, asked.target_Q).tolist(),
        "unseen_ranks": ranks_of(unseen, asked.target_Q).tolist(),
    }


def _plain(setting: SequenceSetting, sequences: Sequences, split: SplitEvents) -> Part:
    """Measure what is not trained."""
    asked, features = users_of(sequences, split), sequences.features
    assert features is not None
    last = sequences.row_E[split.test - 1]
    vectors = np.concatenate([features.image, features.text], 1).astype(np.float32)
    item_ND = torch.nn.functional.normalize(torch.from_numpy(vectors - vectors.mean(0)), dim=1)
    lists = {
        "popularity": most_popular(asked.count_N, len(split.test)),
        "last_item": nearest_to(item_ND, torch.from_numpy(last)),
    }
    return {"systems": {name: system_part(top, asked) for name, top in lists.items()}, "training_seconds": 0.0}


def _sasrec(setting: SequenceSetting, sequences: Sequences, split: SplitEvents) -> Part:
    """Train all trials and measure the one that validates best."""
    begun, best, told = perf_counter(), (-1.0, None), []
    model: SasRec | None = None
    for number, config in enumerate(trials(setting.scale)):
        folder = setting.folder("sasrec") / str(number)
        tried, history = fit_sasrec(sequences, split, config, seed=setting.seed, device=setting.device, folder=folder)
        value = max(metrics["select"] for metrics in history if "select" in metrics)
        told.append({"config": as_dict(config), "ndcg@10": value, "epochs": len(history)})
        if value > best[0]:
            best, model = (value, None), tried
    assert model is not None
    spent, asked = perf_counter() - begun, users_of(sequences, split)
    rows = torch.from_numpy(sequences.histories(split.test, model.config.length)).long().to(setting.device)
    systems = {"sasrec": system_part(model.top(rows, min(DEPTH, len(sequences.items))), asked)}
    return {"systems": systems, "training_seconds": spent, "validation": {"sasrec": told}}


@dataclass(frozen=True, slots=True)
class Fitted:
    """A trained recommender with what it is measured by."""

    run: RunFolder
    vectors: Vectors
    search: HistorySearch
    decoder: CodeDecoder
    config: RunConfig
    device: str
    seconds: float

    @property
    def test(self) -> Task:
        """The test users."""
        return self.vectors.of_split("test")[0]

    @property
    def codes(self) -> np.ndarray:
        """Codes without their last number (N, T)."""
        own = len(self.search.tokenizer.quantizer.own_sizes)
        codes: np.ndarray = self.search.codes_NT[:, :own].cpu().numpy()
        return codes

    def top(self, config: SearchConfig | None = None, task: Task | None = None) -> np.ndarray:
        """Return the lists of a search, by default the run's own."""
        return self.search.top(self.decoder, task or self.test, config or self.config.search, DEPTH)

    def dense(self, task: Task | None = None) -> np.ndarray:
        """Return the lists of dense search by the learned vector, or where none was learnt the ridge regression's."""
        kind = "learned" if self.decoder.config.history.contrast > 0 else "ridge"
        asked = self.search.asked(self.decoder, task or self.test, kind)  # type: ignore[arg-type]
        return dense_top(asked, self.search.item_ND, DEPTH)


def fitted(setting: SequenceSetting, unit: str, recipe: str, sequences: Sequences, split: SplitEvents) -> Fitted:
    """Train a recipe in the unit's folder, going on with what is there."""
    begun, root = perf_counter(), setting.folder(unit)
    config = setting.config(recipe, sequences, len(split.train))
    assert sequences.features is not None
    prepared = prepare(sequences, sequences.features, config, split=split, as_given=True)
    with lock_run(root, "siglum bench sequences"):
        fit_run(RunFolder(root), prepared, device=setting.device, resume=True)
    spent, run = perf_counter() - begun, RunFolder(root)
    loaded, (vectors, _) = Recommender.load(root, device=setting.device), load_vectors(run.vectors)
    assert loaded.decoder is not None
    search = HistorySearch(vectors, loaded.tokenizer, setting.device)
    return Fitted(run, vectors, search, loaded.decoder, run.config(), setting.device, spent)


def _generative(setting: SequenceSetting, unit: str, sequences: Sequences, split: SplitEvents) -> Part:
    """Train one recommender and measure the systems that its unit stands for."""
    one = fitted(setting, unit, unit, sequences, split)
    asked = users_of(sequences, split, one.codes)
    lists, chosen = _lists(unit, one)
    tried = (read_kept_json(one.run.root, CHOSEN) or {}).get("tried", [])
    sizes = one.search.tokenizer.quantizer.sizes
    return {
        "systems": {name: system_part(top, asked) for name, top in lists.items()},
        "training_seconds": one.seconds,
        "validation": {**({unit: tried} if tried else {}), **chosen},
        "search": {unit: as_dict(one.config.search)},
        "disambiguation": count_equal(one.search.codes_NT.cpu().numpy(), sizes)._asdict(),
        "check": {unit: checked(one)},
        "latency_ms": latency(one),
    }


def _lists(unit: str, one: Fitted) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the lists of a unit's systems, and what else was chosen on validation."""
    own = one.config.search
    if unit == "tiger_strong":
        fused = replace(one.config, search=replace(own, scorer="fused", vector="ridge"))
        bridge, tried = choose_fusion(one.vectors, one.search.tokenizer, one.decoder, fused, one.device)
        return {"tiger_strong": one.top(), "bridge": one.top(bridge)}, {"bridge": tried}
    if unit == "liger":
        ways = {name: join(one, name, one.test) for name in ("rescored", "joined")}
        task = validation_task(one.vectors, one.config.decoder.history.asked)
        values = {}
        if task is not None:
            target_Q = targets_of(task)
            values = {name: means(ranks_of(join(one, name, task), target_Q))["ndcg@10"] for name in ways}
        best = max(values, key=lambda name: values[name]) if values else "joined"
        return {"dense": one.dense(), "liger": ways[best]}, {"liger": values}
    if unit == "pro":
        return {"pro": one.top(), "pro_without_sf": one.top(replace(own, scorer="decoder"))}, {}
    return {unit: one.top()}, {}


def join(one: Fitted, way: str, task: Task) -> np.ndarray:
    """Return generated candidates joined with dense search.

    rescored: the generated items and those that training never saw, by dense similarity; joined: both lists by
    reciprocal rank.
    """
    generated, dense = one.top(task=task), one.dense(task)
    if way == "joined":
        return np.stack([reciprocal(*pair) for pair in zip(generated, dense, strict=True)])
    seen_N = np.zeros(len(one.vectors.items), bool)
    assert one.vectors.histories is not None
    rows = one.vectors.histories.row_MH[one.vectors.pair_query]
    seen_N[rows[rows >= 0]] = True
    seen_N[one.vectors.pair_item] = True
    found = np.full_like(generated, -1)
    for row, (some, near) in enumerate(zip(generated, dense, strict=True)):
        kept = near[np.isin(near, some) | ~seen_N[near]]
        rest = some[(some >= 0) & ~np.isin(some, kept)]
        both = np.concatenate([kept, rest])[: generated.shape[1]]
        found[row, : len(both)] = both
    return found


def reciprocal(one_K: np.ndarray, other_K: np.ndarray) -> np.ndarray:
    """Return two lists as one, by the sum of 1 / (60 + rank) over both.

    >>> reciprocal(np.array([4, 2]), np.array([2, 9])).tolist()
    [2, 4]
    """
    score = dict[int, float]()
    for top in (one_K, other_K):
        for rank, item in enumerate(top.tolist(), 1):
            if item >= 0:
                score[item] = score.get(item, 0.0) + 1 / (JOIN + rank)
    best = sorted(score, key=lambda item: (-score[item], item))[: len(one_K)]
    return np.array(best + [-1] * (len(one_K) - len(best)))


def checked(one: Fitted) -> dict[str, Any]:
    """Return whether the parts of PRO acted: K and survival level by level on validation users, by rung."""
    tokenizer, search = one.search.tokenizer, one.config.search
    found = diagnose(
        one.vectors, tokenizer, search, split="val", decoder=one.decoder, beam=20, queries=500, device=one.device
    )
    names = ("level", "size", "K", "m", "survival", "chance", "error", "eps", "eps_fused")
    return {
        "beam": 20,
        "levels": [{name: level[name] for name in names} for level in found["levels"]],  # type: ignore[literal-required]
        "rungs": {rung["rung"]: rung["survival"] for rung in found["ladder"]},
    }


def latency(one: Fitted) -> dict[str, float]:
    """Return the middle and the slow milliseconds of one history at a time, on the CPU whatever trained it."""
    fitted_cpu = Recommender.load(one.run.root, device="cpu")
    histories = one.vectors.histories
    assert histories is not None
    rows = one.test.query_rows[np.linspace(0, len(one.test.query_rows) - 1, TIMED).astype(int)]
    spent = []
    for row in rows.tolist():
        names = [one.vectors.items.ids[item] for item in histories.row_MH[row].tolist() if item >= 0]
        begun = perf_counter()
        fitted_cpu.next(names, k=10)
        spent.append(1000 * (perf_counter() - begun))
    own = spent[len(spent) // 5 :]  # the first are slow, as weights are folded and pages read
    return {"median": float(np.median(own)), "p95": float(np.quantile(own, 0.95)), "threads": torch.get_num_threads()}


def _held_out(setting: SequenceSetting, unit: str, sequences: Sequences, split: SplitEvents) -> Part:
    """Keep a share of the items from training, code them afterwards, and ask the users whose next item is one of them.

    Training sees neither events nor vectors of these items; their codes come from the finished tokenizer.
    """
    gone_N = np.random.default_rng(setting.seed).random(len(sequences.items)) < HELD_OUT
    kept, inner = without_held_out(sequences, split, gone_N)
    places = np.flatnonzero(gone_N[sequences.row_E[split.test]])
    if not len(places):
        raise SiglumError("no user's next item was held out; there are too few users to measure new items on.")
    asked = users_of(
        sequences, replace(split, test=split.test[places], learnt_E=split.learnt_E & ~gone_N[sequences.row_E])
    )
    recipe = KEPT_FROM[unit]
    one = fitted(setting, unit, recipe, kept, inner)
    history = one.config.decoder.history
    assert sequences.features is not None
    whole = history_vectors(sequences, split, sequences.features, length=history.items, fade=history.fade)
    own = replace(one, vectors=whole, search=HistorySearch(whole, one.search.tokenizer, setting.device))
    task = own.test
    some = Task(task.name, "test", task.query_rows[places], task.pool_rows, [task.positives[i] for i in places])
    systems = {f"held_out.{recipe}": system_part(own.top(task=some), asked)}
    if recipe == "pro":
        systems["held_out.dense"] = system_part(own.dense(some), asked)
    return {"systems": systems, "training_seconds": one.seconds, "held_out_items": int(gone_N.sum())}


def without_held_out(sequences: Sequences, split: SplitEvents, gone_N: np.ndarray) -> tuple[Sequences, SplitEvents]:
    """Return sequences without the events of some items, and the same targets there as far as they are left."""
    keep_E = ~gone_N[sequences.row_E]
    kept, place_E = sequences.without_items(gone_N), np.cumsum(keep_E) - 1
    begins = np.zeros(len(kept.row_E) + 1, bool)
    begins[kept.offset_U] = True

    def still(at_P: np.ndarray) -> np.ndarray:
        at = place_E[at_P[keep_E[at_P]]]
        found: np.ndarray = at[~begins[at]]
        return found

    return kept, SplitEvents(still(split.train), still(split.val), still(split.test), split.learnt_E[keep_E])
