"""M-BEIR's conventions: datasets, tasks, ids, file names, instructions and the form of its texts.

M-BEIR is 16 pairs of a dataset and a task, named such as `mscoco_task0`; GENIUS adds Flickr30k as an eleventh
dataset in the same form. An id is `D:N`, dataset and number within it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from siglum.types import SiglumError, one_of

Prompt = Literal["seeded", "first"]

DATASETS = {
    "visualnews": 0,
    "fashion200k": 1,
    "webqa": 2,
    "edis": 3,
    "nights": 4,
    "oven": 5,
    "infoseek": 6,
    "fashioniq": 7,
    "cirr": 8,
    "mscoco": 9,
    "flickr30k": 10,
}
"""Dataset ids; Flickr30k's is GENIUS' addition."""

MODALITIES = {
    0: ("text", "image"),
    1: ("text", "text"),
    2: ("text", "image,text"),
    3: ("image", "text"),
    4: ("image", "image"),
    6: ("image,text", "text"),
    7: ("image,text", "image"),
    8: ("image,text", "image,text"),
}
"""Modality of queries and of candidates by task id; 5 is not used."""

SIXTEEN = (
    "visualnews_task0",
    "mscoco_task0",
    "fashion200k_task0",
    "webqa_task1",
    "edis_task2",
    "webqa_task2",
    "visualnews_task3",
    "mscoco_task3",
    "fashion200k_task3",
    "nights_task4",
    "oven_task6",
    "infoseek_task6",
    "fashioniq_task7",
    "cirr_task7",
    "oven_task8",
    "infoseek_task8",
)
"""The tasks of M-BEIR."""

NINE = (
    "mscoco_task0",
    "flickr30k_task0",
    "webqa_task1",
    "webqa_task2",
    "mscoco_task3",
    "nights_task4",
    "cirr_task7",
    "oven_task8",
    "infoseek_task6",
)
"""The tasks of the paper's main table, in its order."""

KNOWN = (*SIXTEEN, "flickr30k_task0", "flickr30k_task3")
POOLS_BY_SPLIT = ("mscoco", "flickr30k")
"""Datasets whose pools differ between val and test."""
QUERIES_PER_DATASET, CANDIDATES_PER_DATASET = 500_000, 10_000_000
ORIGIN = "M-BEIR comes from https://huggingface.co/datasets/TIGER-Lab/M-BEIR (see docs/mbeir.md)"


def split_task(task: str) -> tuple[str, int]:
    """Return dataset and task id of a task's name.

    >>> split_task("webqa_task2")
    ('webqa', 2)
    """
    dataset, _, number = one_of("the M-BEIR task", task, (*KNOWN, "all")).partition("_task")
    return dataset, int(number)


def metric_ks(task: str) -> tuple[int, int, int]:
    """Return the cut-offs k at which M-BEIR reports Success@k (it says Recall@k).

    >>> metric_ks("fashioniq_task7"), metric_ks("cirr_task7")
    ((10, 20, 50), (1, 5, 10))
    """
    return (10, 20, 50) if split_task(task)[0] in ("fashion200k", "fashioniq") else (1, 5, 10)


def hash_id(name: object, bound: int) -> int:
    """Return an id `D:N` as UniIR's number D * bound + N; queries and candidates have a bound each.

    >>> hash_id("9:12", QUERIES_PER_DATASET), unhash_id(90_000_012)
    (4500012, '9:12')
    """
    dataset, _, number = name.partition(":") if isinstance(name, str) else ("", "", "")
    if not (dataset.isdecimal() and number.isdecimal() and name == f"{int(dataset)}:{int(number)}"):
        raise SiglumError(f"the id {name!r} is not of M-BEIR's form D:N, such as 9:12.")
    if int(number) >= bound:
        raise SiglumError(f"the id {name!r} has a number of {bound} or more, which M-BEIR's ids never have.")
    return int(dataset) * bound + int(number)


def unhash_id(number: int, bound: int = CANDIDATES_PER_DATASET) -> str:
    """Return the id, of a candidate by default, behind `hash_id`."""
    return f"{number // bound}:{number % bound}"


def format_string(text: str | None) -> str:
    r"""Return a text as UniIR writes it: trimmed, first letter large, a stop at the end.

    >>> format_string('"a red\r star" '), format_string("Why?"), format_string(None)
    ('A red star.', 'Why?', '')
    """
    bare = (text or "").replace("\r", "").strip().strip('"')
    if not bare:
        return ""
    large = bare[0].upper() + bare[1:]
    return large if large[-1] in ".?!" else large + "."


def draw(number: int, *what: object) -> int:
    """Return a number below `number` that depends on `what` alone, not on the order of drawing."""
    digest = hashlib.blake2b(" ".join(map(str, what)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % number


@dataclass(frozen=True, slots=True)
class Instructions:
    """The prompts of every (dataset id, query modality, candidate modality) and how one of them is chosen."""

    prompts: Mapping[tuple[int, str, str], Sequence[str]]
    prompt: Prompt
    seed: int

    def of(self, name: str, dataset: int, query_modality: str, candidate_modality: str) -> str:
        """Return the prompt of the query of this name; Flickr30k takes COCO's where it has none of its own."""
        found = self.prompts.get((dataset, query_modality, candidate_modality))
        if not found and dataset == DATASETS["flickr30k"]:
            found = self.prompts.get((DATASETS["mscoco"], query_modality, candidate_modality))
        if not found:
            raise SiglumError(
                f"the instructions have no prompt for dataset {dataset}, query modality {query_modality!r} and"
                f" candidate modality {candidate_modality!r}, which query {name!r} needs."
            )
        return format_string(found[0 if self.prompt == "first" else draw(len(found), self.seed, "prompt", name)])


def read_instructions(path: Path, prompt: Prompt, seed: int) -> Instructions:
    """Read query_instructions.tsv: query modality, candidate modality, dataset name, dataset id, prompts."""
    one_of("prompt", prompt, ("seeded", "first"))
    prompts: dict[tuple[int, str, str], Sequence[str]] = {}
    with path.open(encoding="utf-8-sig") as file:
        next(file, None)
        for number, line in enumerate(file, 2):
            columns = [column.strip() for column in line.rstrip("\r\n").split("\t")]
            if not any(columns):
                continue
            if len(columns) < 5 or not columns[3].isdecimal():
                raise SiglumError(
                    f"{path}, line {number}: needs query modality, candidate modality, dataset name, dataset id and"
                    " prompts, separated by tabs."
                )
            prompts[int(columns[3]), columns[0], columns[1]] = [text for text in columns[4:] if text]
    return Instructions(prompts, prompt, seed)


@dataclass(frozen=True, slots=True)
class MbeirFiles:
    """Where the files of some tasks lie under M-BEIR's root."""

    root: Path
    tasks: tuple[str, ...]
    union: bool
    left_out: tuple[str, ...] = ()
    """Tasks of the paper that were not asked for by name and have no files."""

    @classmethod
    def of(cls, root: Path, tasks: Sequence[str] | None, union: bool) -> MbeirFiles:
        """Choose the tasks (the paper's nine unless named; `all` is the sixteen) and see that their files exist."""
        left_out: tuple[str, ...] = ()
        if tasks is None:
            layout = cls(root, NINE, union)
            # Flickr30k is no part of M-BEIR: without its files the paper's other tasks can still be measured.
            if any(not path.exists() for path in layout.of_task("flickr30k_task0")):
                left_out = ("flickr30k_task0",)
            tasks = [task for task in NINE if task not in left_out]
        elif "all" in tasks:
            tasks = [*SIXTEEN, *(task for task in tasks if task not in (*SIXTEEN, "all"))]
        for task in tasks:
            one_of("the M-BEIR task", task, KNOWN)
        if not tasks:
            raise SiglumError("no M-BEIR tasks are chosen; name at least one, or all.")
        layout = cls(root, tuple(dict.fromkeys(tasks)), union, left_out)
        for path in layout.files():
            if not path.exists():
                raise SiglumError(f"{path} does not exist; {ORIGIN}.")
        return layout

    @property
    def instructions(self) -> Path:
        """The prompts."""
        return self.root / "instructions" / "query_instructions.tsv"

    @property
    def training(self) -> list[tuple[Path, Path]]:
        """Training queries with their candidates: the up-sampled union, and Flickr30k's where it is asked and there."""
        candidates = self.root / "cand_pool"
        union = "mbeir_union_up_train.jsonl", "mbeir_union_train_cand_pool.jsonl"
        found = [(self.root / "query" / "union_train" / union[0], candidates / "global" / union[1])]
        extra = self.root / "query" / "train" / "mbeir_flickr30k_train.jsonl"
        if extra.exists() and any(task.startswith("flickr30k") for task in self.tasks):
            found.append((extra, candidates / "local" / "mbeir_flickr30k_train_cand_pool.jsonl"))
        return found

    def queries(self, split: str, task: str) -> Path:
        """Queries of a task."""
        return self.root / "query" / split / f"mbeir_{task}_{split}.jsonl"

    def qrels(self, split: str, task: str) -> Path:
        """Judgements of a task."""
        return self.root / "qrels" / split / f"mbeir_{task}_{split}_qrels.txt"

    def pool(self, split: str, task: str) -> Path:
        """Candidates of a task; validation keeps to its own pool when test goes to the union."""
        if self.union and split == "test":
            return self.root / "cand_pool" / "global" / "mbeir_union_test_cand_pool.jsonl"
        name = f"{task}_{split}" if split_task(task)[0] in POOLS_BY_SPLIT else task
        return self.root / "cand_pool" / "local" / f"mbeir_{name}_cand_pool.jsonl"

    def of_task(self, task: str) -> list[Path]:
        """Return the files a task needs."""
        parts = (self.queries, self.qrels, self.pool)
        return [part(split, task) for split in ("val", "test") for part in parts]

    def files(self) -> list[Path]:
        """Return every file that is read, each once."""
        found = [self.instructions, *(path for pair in self.training for path in pair)]
        return list(dict.fromkeys([*found, *(path for task in self.tasks for path in self.of_task(task))]))
