"""Read M-BEIR as a collection: one universal training set, and a pool for every task.

Query numbers begin anew in every split, so a test query keeps its qid as id, and those of the other splits are
`qid@val` and `qid@train`; a training query that up-sampling repeats is `qid@train#2` and so on. A training line gives
one pair: its positive is drawn once, by seed. Judgements of the other splits come from the qrels.
"""

# Shapes: N candidates of a file, M queries of a file, P positives of all of them.

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from siglum.data.collection import Chain, Collection
from siglum.data.jsonl import JsonLines, JsonObject, scan_lines
from siglum.data.trec import read_qrels
from siglum.lab.mbeir.layout import (
    CANDIDATES_PER_DATASET,
    MODALITIES,
    ORIGIN,
    QUERIES_PER_DATASET,
    MbeirFiles,
    Prompt,
    draw,
    hash_id,
    read_instructions,
    split_task,
)
from siglum.lab.mbeir.rows import KINDS, CandidateFile, Dids, QueryFile, lacks_a_part, query_id, text_of
from siglum.log import progress
from siglum.types import Query, SiglumError, one_of


def read_mbeir(
    root: Path, *, tasks: Sequence[str] | None = None, prompt: Prompt = "seeded", seed: int = 0, union: bool = False
) -> Collection:
    """Read M-BEIR from a copy of its Hugging Face repository.

    The tasks are the paper's nine unless named (`all` is M-BEIR's sixteen); `union` asks test queries against the
    pool of all tasks. Training is on the whole up-sampled union, whatever the tasks. A prompt is drawn for each query
    by seed, or is the first one. What could not be used is counted in the collection's `notes`: above all, positives
    that a local pool does not hold (OVEN and InfoSeek name each other's), and queries left with none. Those stay among
    the queries, with no positives: in M-BEIR's averages each of them is a miss.
    """
    return _Reader(MbeirFiles.of(Path(root), tasks, union), prompt, seed).read()


class _Reader:
    """Reads every file once, keeping numbers alone."""

    def __init__(self, layout: MbeirFiles, prompt: Prompt, seed: int) -> None:
        self.layout, self.seed = layout, seed
        self.instructions = read_instructions(layout.instructions, prompt, seed)
        self.notes: Counter[str] = Counter()
        self.candidates: dict[Path, CandidateFile] = {}

    def read(self) -> Collection:
        layout, splits = self.layout, ("val", "test")
        pools = {(split, task): layout.pool(split, task) for split in splits for task in layout.tasks}
        for path in progress(dict.fromkeys([*(pool for _, pool in layout.training), *pools.values()]), "read pools"):
            self.candidates[path] = self._read_candidates(path)
        seen, parts = np.zeros(0, np.int64), []
        for found in self.candidates.values():
            parts.append(found.without(seen))
            seen = np.union1d(seen, found.hashed_N)
        queries: dict[str, Sequence[Query]] = {"train": Chain([self._read_training(*pair) for pair in layout.training])}
        for split in splits:
            queries[split] = Chain([self._read_task(split, task) for task in layout.tasks])
        if layout.left_out:
            self.notes[f"tasks left out, having no files: {', '.join(layout.left_out)}"] = len(layout.left_out)
        ids = {path: Dids(found.hashed_N) for path, found in self.candidates.items()}
        notes = {name: count for name, count in sorted(self.notes.items()) if count}
        return Collection(Chain(parts), queries, {key: ids[path] for key, path in pools.items()}, notes)

    def _read_candidates(self, path: Path) -> CandidateFile:
        offsets, hashed, kinds, pictures = array("q"), array("q"), array("b"), False
        for offset, where, record in scan_lines(path):
            has_text, has_image = bool(text_of(record, "txt", where)), bool(record.get("img_path"))
            kind = one_of(f"{where}: the modality", str(record.get("modality")), KINDS)
            if not has_text and not has_image:
                self.notes["candidates dropped, with neither text nor picture"] += 1
                continue
            self.notes["candidates without a part their modality names"] += lacks_a_part(kind, has_text, has_image)
            pictures = pictures or has_image
            offsets.append(offset)
            hashed.append(_hashed(record, "did", where))
            kinds.append(KINDS.index(kind))
        if not hashed:
            raise SiglumError(f"{path} holds no candidates; {ORIGIN}.")
        if pictures and not (self.layout.root / "mbeir_images").is_dir():
            raise SiglumError(f"{path} names pictures, but {self.layout.root / 'mbeir_images'} is missing; {ORIGIN}.")
        hashed_N = np.array(hashed, np.int64)
        keep = np.sort(np.unique(hashed_N, return_index=True)[1])
        self.notes["candidates dropped, listed twice in one pool"] += len(hashed) - len(keep)
        lines = JsonLines(path, np.array(offsets, np.int64)[keep])
        return CandidateFile(self.layout.root, lines, hashed_N[keep], np.array(kinds, np.int8)[keep])

    def _read_task(self, split: str, task: str) -> QueryFile:
        """Read val or test queries of a task; their positives are the qrels' that the pool holds."""
        path, judgements = self.layout.queries(split, task), self.layout.qrels(split, task)
        pool, qrels = self.layout.pool(split, task), read_qrels(judgements)
        found = _Scan(path, self.notes)
        if found.repeat_M.any():
            twice = found.qids[int(np.argmax(found.repeat_M > 0))]
            raise SiglumError(f"{path} has the query {twice!r} twice; the qids of a task must differ.")
        judged = [[did for did, grade in qrels.get(qid, {}).items() if grade > 0] for qid in found.qids]
        begin, positive_P = _cut([[_hashed({"did": did}, "did", str(judgements)) for did in row] for row in judged])
        here = self.candidates[pool].kinds_of(positive_P) >= 0
        if not here.any():
            raise SiglumError(f"no query of {path} has a positive in {pool}; the files do not belong together.")
        begin = np.concatenate([[0], np.cumsum(here)])[begin]
        self.notes[f"{split}: positives outside their pool"] += int((~here).sum())
        self.notes[f"{split}: queries without a positive in their pool"] += int((np.diff(begin) == 0).sum())
        self.notes[f"{split}: judged queries that are not in the query file"] += len(qrels.keys() - set(found.qids))
        wanted = KINDS.index(MODALITIES[split_task(task)[1]][1])
        suffix, kind_M = "" if split == "test" else f"@{split}", np.full(len(found.qids), wanted, np.int8)
        return found.questions(self, task, suffix, kind_M, begin, positive_P[here])

    def _read_training(self, path: Path, pool: Path) -> QueryFile:
        """Read training queries, each line with one of its positives, drawn by seed."""
        found = _Scan(path, self.notes)
        begin, positive_P = _cut(found.positives)
        kind_P = self.candidates[pool].kinds_of(positive_P)
        chosen_M = np.full(len(found.qids), -1, np.int64)
        for row, (start, end) in enumerate(zip(begin[:-1].tolist(), begin[1:].tolist(), strict=True)):
            usable = np.flatnonzero(kind_P[start:end] >= 0)
            if len(usable):
                name = query_id(found.qids[row], "@train", int(found.repeat_M[row]))
                chosen_M[row] = start + usable[draw(len(usable), self.seed, "positive", name)]
        keep = chosen_M >= 0
        self.notes["train: positives outside their pool"] += int((kind_P < 0).sum())
        self.notes["train: queries dropped, without a positive in their pool"] += int((~keep).sum())
        self.notes["train: lines that repeat a query (up-sampling)"] += int((found.repeat_M > 0).sum())
        if not keep.any():
            raise SiglumError(f"no query of {path} has a positive in {pool}; the files do not belong together.")
        chosen = chosen_M[keep]
        found = found.keep(keep)
        bounds = np.arange(len(chosen) + 1)
        return found.questions(self, "train", "@train", kind_P[chosen].astype(np.int8), bounds, positive_P[chosen])


class _Scan:
    """One pass over a query file: offsets, ids, how often each id came before, and the positives each line names."""

    def __init__(self, path: Path, notes: Counter[str]) -> None:
        self.path = path
        self.qids: list[str] = []
        self.positives: list[list[int]] = []
        offsets, hashed, repeats, seen = array("q"), array("q"), array("i"), Counter[int]()
        for offset, where, record in progress(scan_lines(path), f"read {path.name}", unit="line"):
            number = _hashed(record, "qid", where)
            kind = one_of(f"{where}: the query modality", str(record.get("query_modality")), KINDS)
            has_text, has_image = bool(text_of(record, "query_txt", where)), bool(record.get("query_img_path"))
            notes["queries without a part their modality names"] += lacks_a_part(kind, has_text, has_image)
            offsets.append(offset)
            hashed.append(number)
            repeats.append(seen[number])
            seen[number] += 1
            self.qids.append(record["qid"])
            self.positives.append(_positives(record, where))
        if not hashed:
            raise SiglumError(f"{path} holds no queries; {ORIGIN}.")
        self.offset_M, self.hashed_M = np.array(offsets, np.int64), np.array(hashed, np.int64)
        self.repeat_M = np.array(repeats, np.int32)

    def keep(self, which_M: np.ndarray) -> _Scan:
        """Drop the other lines' numbers."""
        self.offset_M, self.hashed_M, self.repeat_M = (
            part[which_M] for part in (self.offset_M, self.hashed_M, self.repeat_M)
        )
        return self

    def questions(
        self,
        reader: _Reader,
        task: str,
        suffix: str,
        kind_M: np.ndarray,
        begin_M: np.ndarray,
        positive_P: np.ndarray,
    ) -> QueryFile:
        """Return the lines as queries."""
        return QueryFile(
            reader.layout.root,
            JsonLines(self.path, self.offset_M),
            task,
            reader.instructions,
            self.hashed_M,
            suffix,
            self.repeat_M,
            kind_M,
            begin_M,
            positive_P,
        )


def _cut(lists: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return ragged rows as bounds (M + 1,) and values (P,)."""
    begin = np.concatenate([[0], np.cumsum([len(row) for row in lists])]).astype(np.int64)
    return begin, np.fromiter((value for row in lists for value in row), np.int64, int(begin[-1]))


def _positives(record: JsonObject, where: str) -> list[int]:
    """Return the hashed ids of `pos_cand_list`, whose entries are dids or objects with a did."""
    entries = record.get("pos_cand_list") or []
    if not isinstance(entries, list):
        raise SiglumError(f"{where}: pos_cand_list is {entries!r:.60}, but must be a list.")
    records = [entry if isinstance(entry, dict) else {"did": entry} for entry in entries]
    return list(dict.fromkeys(_hashed(entry, "did", where) for entry in records))


def _hashed(record: JsonObject, field: str, where: str) -> int:
    try:
        return hash_id(record.get(field), CANDIDATES_PER_DATASET if field == "did" else QUERIES_PER_DATASET)
    except SiglumError as error:
        raise SiglumError(f"{where}: {error}") from error
