"""A small M-BEIR in its real file format, made from the drawn world."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from siglum.data.pictures import load_picture
from siglum.lab.mbeir.layout import DATASETS, MODALITIES, NINE, POOLS_BY_SPLIT, split_task
from siglum.lab.world.collection import World
from siglum.types import Item

Line = dict[str, Any]
PICTURE = 24


def write_lines(path: Path, lines: Iterable[Line]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def append_lines(path: Path, lines: Iterable[Line]) -> None:
    path.write_text(path.read_text() + "".join(json.dumps(line) + "\n" for line in lines))


def candidate(did: str, modality: str, text: str | None = None, image: str | None = None) -> Line:
    return {"did": did, "txt": text, "img_path": image, "modality": modality, "src_content": None}


def question(qid: str, modality: str, positives: list[Any], text: str | None = None, image: str | None = None) -> Line:
    return {
        "qid": qid,
        "query_txt": text,
        "query_img_path": image,
        "query_modality": modality,
        "query_src_content": None,
        "pos_cand_list": positives,
        "neg_cand_list": [],
    }


def write_qrels(path: Path, judged: Iterable[tuple[str, str]], task: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{qid} 0 {did} 1 {task}\n" for qid, did in judged))


class Maker:
    """Writes the files of some tasks, each with a training, a validation and a test part of scenes of its own."""

    def __init__(self, root: Path, tasks: Iterable[str], scenes: int) -> None:
        self.root, self.tasks, self.scenes = root, list(tasks), scenes
        world = World(max(200, 36 * scenes * len(self.tasks)), 0)
        self.scene = (item for item in world.items("train") if item.id.endswith("-it"))
        self.next_item = 0
        self.union: dict[str, list[Line]] = {"train": [], "test": []}
        self.training: list[Line] = []
        self.numbers: dict[tuple[str, str], int] = {}

    def write(self) -> Path:
        for task in self.tasks:
            self._write_task(task)
        write_lines(self.root / "query/union_train/mbeir_union_up_train.jsonl", self.training)
        for split, lines in self.union.items():
            write_lines(self.root / f"cand_pool/global/mbeir_union_{split}_cand_pool.jsonl", lines)
        self._write_instructions()
        return self.root

    def _write_task(self, task: str) -> None:
        dataset, number = split_task(task)
        pools: dict[str, list[Line]] = {}
        for split in ("train", "val", "test"):
            pools[split], queries, judged = [], [], []
            for _ in range(self.scenes * (4 if split == "train" else 1)):
                line, other = self._pair(dataset, number, split)
                pools[split].append(other)
                queries.append(line)
                judged.append((line["qid"], other["did"]))
            if split == "train":
                self.training += queries
            else:
                write_lines(self.root / f"query/{split}/mbeir_{task}_{split}.jsonl", queries)
                write_qrels(self.root / f"qrels/{split}/mbeir_{task}_{split}_qrels.txt", judged, number)
        self.union["train"] += pools["train"]
        both = pools["val"] + pools["test"]
        for split in ("val", "test"):
            whole = dataset not in POOLS_BY_SPLIT
            name = task if whole else f"{task}_{split}"
            write_lines(self.root / f"cand_pool/local/mbeir_{name}_cand_pool.jsonl", both if whole else pools[split])
        self.union["test"] += both if dataset not in POOLS_BY_SPLIT else pools["test"]

    def _pair(self, dataset: str, task: int, split: str) -> tuple[Line, Line]:
        """Return a query and the candidate that answers it: one scene, seen and worded twice."""
        scene, (given, wanted) = next(self.scene), MODALITIES[task]
        did, picture = f"{DATASETS[dataset]}:{self.next_item}", self._picture(scene)
        self.next_item += 1
        place = self.numbers.setdefault((dataset, split), 0)
        self.numbers[dataset, split] += 1
        parts = [
            {"text": scene.text if "text" in kind else None, "image": picture if "image" in kind else None}
            for kind in (given, wanted)
        ]
        line = question(f"{DATASETS[dataset]}:{place}", given, [did], **parts[0])
        return line, candidate(did, wanted, **parts[1])

    def _picture(self, item: Item) -> str:
        from PIL import Image

        path = self.root / "mbeir_images" / f"{item.id}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        assert item.image is not None
        Image.fromarray(load_picture(item.image, PICTURE)).save(path)
        return str(path.relative_to(self.root))

    def _write_instructions(self) -> None:
        rows = ["query_modality\tcand_modality\tdataset_name\tdataset_id\tprompt_1\tprompt_2\tprompt_3\tprompt_4"]
        for task in (*NINE, "oven_task6", "infoseek_task8", "fashioniq_task7"):
            dataset, number = split_task(task)
            if dataset != "flickr30k":
                prompts = [f"{word} what fits {dataset}" for word in ("find", "show", "give", "name")]
                rows.append("\t".join([*MODALITIES[number], dataset, str(DATASETS[dataset]), *prompts]))
        path = self.root / "instructions/query_instructions.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(rows) + "\n")


def make_root(root: Path, tasks: Iterable[str], scenes: int = 4) -> Path:
    """Write a small M-BEIR: `scenes` val and test pairs a task, and four times as many for training."""
    return Maker(root, tasks, scenes).write()
