"""Captioned pictures in Karpathy's layout: dataset_coco.json, dataset_flickr30k.json, dataset_flickr8k.json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from siglum.data.collection import SPLITS, Collection
from siglum.data.folder import id_of
from siglum.files import read_record
from siglum.given import encodable
from siglum.types import Item, Query, SiglumError, one_of, shown

SPLIT_OF = {"train": "train", "restval": "train", "val": "val", "test": "test"}
"""COCO's restval, what is left of its validation pictures, counts as training."""


def read_karpathy(path: Path, images: Path | None) -> Collection:
    """Read pictures and captions, each an item, with the tasks t2i (caption to picture) and i2t (picture to captions).

    The id of a picture is its file name, that of its captions the same with #0, #1, ...; both tasks are asked against
    all pictures or all captions of the split. `images` is the folder of the pictures, with or without COCO's folders
    train2014 and val2014; None is for those who bring features of their own.
    """
    entries = _read_entries(path)
    nested = _is_nested(path, entries, images)
    pictures: list[Item] = []
    captions: list[Item] = []
    queries: dict[str, list[Query]] = {split: [] for split in SPLITS}
    pools: dict[tuple[str, str], list[str]] = {(split, task): [] for split in SPLITS[1:] for task in ("t2i", "i2t")}
    for entry in entries:
        name, split = id_of(entry["filename"]), SPLIT_OF[one_of(f"a split in {path}", entry["split"], SPLIT_OF)]
        image = (images or Path()) / _relative(entry, nested)
        texts = [Item(id=f"{name}#{n}", text=s["raw"]) for n, s in enumerate(entry["sentences"]) if s["raw"].strip()]
        pictures.append(Item(id=name, image=image))
        captions += texts
        queries[split] += [Query(id=text.id, text=text.text, task="t2i", positives=(name,)) for text in texts]
        if texts:
            queries[split].append(Query(id=name, image=image, task="i2t", positives=tuple(text.id for text in texts)))
        if split != "train":
            pools[split, "t2i"].append(name)
            pools[split, "i2t"] += [text.id for text in texts]
    return Collection([*pictures, *captions], {split: found for split, found in queries.items() if found}, {**pools})


def _read_entries(path: Path) -> Sequence[dict[str, Any]]:
    """Return the pictures' records, checked for what is needed of them."""
    entries = read_record(path, "images")["images"]
    if not isinstance(entries, list) or not entries:
        raise SiglumError(f"{path} lists no pictures under images; it must be a dataset file in Karpathy's layout.")
    for number, entry in enumerate(entries):
        if not _is_whole(entry):
            raise SiglumError(
                f"{path}: picture {number} is {shown(entry)}, but needs filename, split and sentences with raw."
            )
    return entries


def _is_whole(entry: Any) -> bool:
    """Return whether a record has what is needed of it, each of its kind."""
    if not isinstance(entry, dict) or not isinstance(entry.get("sentences"), list):
        return False
    words = [entry.get("filename"), entry.get("split"), entry.get("filepath", "")]
    words += [sentence.get("raw") if isinstance(sentence, dict) else None for sentence in entry["sentences"]]
    return bool(entry.get("filename")) and all(isinstance(text, str) and encodable(text) for text in words)


def _relative(entry: dict[str, Any], nested: bool) -> Path:
    return Path(entry.get("filepath", "") if nested else "", entry["filename"])


def _is_nested(path: Path, entries: Sequence[dict[str, Any]], images: Path | None) -> bool:
    """Return whether the pictures lie in the folders their records name, going by the first picture."""
    if images is None:
        return True
    for nested in (True, False):
        if (images / _relative(entries[0], nested)).is_file():
            return nested
    looked = " and ".join(dict.fromkeys(str(_relative(entries[0], nested)) for nested in (True, False)))
    raise SiglumError(f"the pictures of {path} are not in {images}: looked for {looked}.")
