"""Readers of sequences: a folder in the format of docs/formats.md, Amazon's review files, and MovieLens."""

from __future__ import annotations

import ast
import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from siglum.data.jsonl import JsonObject, scan_lines
from siglum.data.sequences import Sequences, assemble_sequences, keep_core
from siglum.data.vectors import features_of
from siglum.types import Item, SiglumError, shown

SEQUENCES, TIMES, ITEMS, RATINGS = "sequences.txt", "times.txt", "items.jsonl", "ratings.dat"
PARTS = ("text", "image")
REVIEWS = {"reviewerID": ("asin", "unixReviewTime"), "user_id": ("parent_asin", "timestamp")}
"""Names of user, item and time in Amazon's files of 2014 and of 2023."""
CORE = 5


def read_sequences(path: Path, *, seed: int = 0, core: int = CORE) -> Sequences:
    """Read sequences of any known kind; `core` is the fewest events that users and items of raw reviews must have."""
    if (path / SEQUENCES).exists():
        return read_folder_sequences(path, seed=seed)
    if (path / RATINGS).exists():
        return read_movielens(path, seed=seed, core=core)
    reviews = [path] if path.is_file() else sorted(one for one in path.glob("*") if _is_reviews(one))
    if len(reviews) != 1:
        what = "no" if not reviews else f"{len(reviews)}"
        raise SiglumError(
            f"{path} holds {what} sequences that can be read; a folder needs {SEQUENCES}, {RATINGS} of MovieLens, or"
            " one file of Amazon reviews (.json or .jsonl, also packed as .gz)."
        )
    return read_amazon(reviews[0], seed=seed, core=core)


def read_folder_sequences(folder: Path, *, seed: int = 0) -> Sequences:
    """Read a folder with sequences.txt, and items.jsonl, times.txt, text_features.npy, image_features.npy if there."""
    own = dict(_words(folder / SEQUENCES))
    records = [record for _, _, record in scan_lines(folder / ITEMS)] if (folder / ITEMS).exists() else []
    for number, record in enumerate(records, 1):
        if not isinstance(record.get("id"), str | int):
            raise SiglumError(f"{folder / ITEMS}, line {number}: an item needs an id.")
    listed = [str(record["id"]) for record in records] or sorted({name for names in own.values() for name in names})
    known = {name: _named(record) for name, record in zip(listed, records, strict=False)}
    if len(set(listed)) != len(listed):
        raise SiglumError(f"{folder / ITEMS} has {len(listed) - len(set(listed))} ids twice; ids must be unique.")
    if records:
        lacking = next((name for names in own.values() for name in names if name not in known), None)
        if lacking is not None:
            raise SiglumError(f"{folder / SEQUENCES} names the item {shown(lacking)}, which {ITEMS} does not have.")
    names = [known.get(name, name) for name in listed]
    if len(set(names)) != len(names):
        raise SiglumError(f"{folder / ITEMS} has an asin twice; items must differ.")
    inner = dict(zip(listed, names, strict=True))
    events = {user: [(None, inner[name]) for name in found] for user, found in own.items()}
    timed = (folder / TIMES).exists()
    if timed:
        events = _timed(folder, events)
    items = {name: _item(name, record, folder) for name, record in zip(names, records, strict=False)}
    found, order = assemble_sequences(events, items or {name: Item(id=name) for name in names}, seed=seed, timed=timed)
    parts = {part: _features(folder / f"{part}_features.npy", len(names), order) for part in PARTS}
    texts = [_text_of(records[place]) for place in order] if records else []
    features = None
    if any(rows is not None for rows in parts.values()):
        if not records:
            raise SiglumError(f"{folder} has features but no {ITEMS}, whose lines they follow.")
        features = features_of([item.id for item in found.items], image=parts["image"], text=parts["text"])
    return replace(found, texts=texts, features=features)


def read_amazon(reviews: Path, meta: Path | None = None, *, seed: int = 0, core: int = CORE) -> Sequences:
    """Read a file of Amazon reviews of 2014 or 2023, with the meta file beside it where there is one.

    A user's several reviews of one item count once, at the first.
    """
    events = dict[str, list[tuple[int, str]]]()
    for place, record in _lines(reviews):
        kind = next((name for name in REVIEWS if name in record), "")
        fields = REVIEWS.get(kind, ("", ""))
        if not kind or not all(isinstance(record.get(name), str | int) for name in fields):
            raise SiglumError(
                f"{place}: a review needs reviewerID, asin and unixReviewTime (2014) or user_id, parent_asin and"
                " timestamp (2023)."
            )
        events.setdefault(str(record[kind]), []).append((int(record[fields[1]]), str(record[fields[0]])))
    kept = _core(events, core, reviews)
    about = meta or _meta_beside(reviews)
    wanted = {name for own in kept.values() for _, name in own}
    records = {} if about is None else _about(about, wanted)
    items = {name: _item(name, records.get(name, {}), None) for name in sorted(wanted)}
    found, _ = assemble_sequences(kept, items, seed=seed, timed=True)
    texts = [_text_of(records.get(item.id, {})) for item in found.items]
    return replace(found, texts=texts, notes={"users with too few reviews": len(events) - len(kept)})


def read_movielens(folder: Path, *, seed: int = 0, core: int = CORE) -> Sequences:
    """Read MovieLens-1M: ratings.dat and movies.dat."""
    events = dict[str, list[tuple[int, str]]]()
    for place, parts in _dat(folder / RATINGS, 4):
        if not parts[3].isdigit():
            raise SiglumError(f"{place}: {shown(parts[3])} is no time.")
        events.setdefault(parts[0], []).append((int(parts[3]), parts[1]))
    films = {parts[0]: parts for _, parts in _dat(folder / "movies.dat", 3)}
    kept = _core(events, core, folder / RATINGS)
    names = {name for own in kept.values() for _, name in own}
    items = {name: Item(id=name, text=films[name][1] if name in films else None) for name in sorted(names)}
    found, _ = assemble_sequences(kept, items, seed=seed, timed=True)
    told = [films.get(item.id) for item in found.items]
    texts = [None if one is None else f"{one[1]}; Genres: {one[2].replace('|', ', ')}" for one in told]
    return replace(found, texts=texts, notes={"users with too few ratings": len(events) - len(kept)})


def _core(events: dict[str, list[tuple[int, str]]], core: int, path: Path) -> dict[str, list[tuple[Any, str]]]:
    kept = keep_core(events, core)
    if not kept:
        raise SiglumError(f"{path} has no user and item with {core} events each; lower the core.")
    return kept


def _words(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the first word of every line that is not blank, and the others."""
    known = set[str]()
    for number, line in enumerate(_text(path).splitlines(), 1):
        words = line.split()
        if not words:
            continue
        if len(words) < 2 or words[0] in known:
            what = "has no item" if len(words) < 2 else "stands twice"
            raise SiglumError(f"{path}, line {number}: user {shown(words[0])} {what}.")
        known.add(words[0])
        yield words[0], words[1:]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SiglumError(f"{path} cannot be read ({error}).") from error


def _timed(folder: Path, events: Mapping[str, list[tuple[Any, str]]]) -> dict[str, list[tuple[Any, str]]]:
    """Return events with the times of times.txt, which has the users and lengths of sequences.txt."""
    times = dict(_words(folder / TIMES))
    for user, own in events.items():
        if len(times.get(user, ())) != len(own) or not all(word.lstrip("-").isdigit() for word in times[user]):
            raise SiglumError(f"{folder / TIMES} needs {len(own)} whole numbers for user {shown(user)}.")
    return {
        user: [(int(when), name) for when, (_, name) in zip(times[user], own, strict=True)]
        for user, own in events.items()
    }


def _named(record: JsonObject) -> str:
    """Return what an item is called whatever number a file gives it."""
    return str(record.get("asin") or record["id"])


def _item(name: str, record: JsonObject, folder: Path | None) -> Item:
    title, image = record.get("title"), record.get("image")
    picture = folder / image if folder is not None and isinstance(image, str) and image else None
    return Item(id=name, text=str(title) if title else None, image=picture)


def _text_of(record: JsonObject) -> str | None:
    """Return what an encoder reads of an item: title, brand and categories, as far as there are some."""
    categories = record.get("categories") or []
    while categories and isinstance(categories[0], list):  # 2014 has a list of paths
        categories = categories[0]
    brand = record.get("brand") or record.get("store")
    parts = [str(record["title"])] if record.get("title") else []
    parts += [f"Brand: {brand}"] if brand else []
    parts += [f"Categories: {' > '.join(map(str, categories))}"] if categories else []
    return "; ".join(parts) or None


def _features(path: Path, items: int, order: np.ndarray) -> np.ndarray | None:
    """Return a file of features in the order of the rows."""
    if not path.exists():
        return None
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise SiglumError(f"{path} is no array of numbers ({error}).") from error
    if found.ndim != 2 or len(found) != items:
        raise SiglumError(f"{path} has shape {found.shape}, but must have a row for each of {items} items.")
    rows: np.ndarray = found[order]
    return rows


def _is_reviews(path: Path) -> bool:
    name = path.name.removesuffix(".gz")
    return name.endswith((".json", ".jsonl")) and not name.startswith("meta_") and path.is_file()


def _meta_beside(reviews: Path) -> Path | None:
    """Return the meta file of the same category in the same folder."""
    stem = reviews.name.split(".")[0].removeprefix("reviews_").removesuffix("_5")
    found = sorted(reviews.parent.glob(f"meta_{stem}.json*"))
    return found[0] if found else None


def _about(path: Path, wanted: set[str]) -> dict[str, JsonObject]:
    """Return the records of a meta file about the wanted items."""
    found = {}
    for _, record in _lines(path):
        name = str(record.get("parent_asin") or record.get("asin"))
        if name in wanted:
            found[name] = record
    return found


def _lines(path: Path) -> Iterator[tuple[str, JsonObject]]:
    """Yield place and record of every line; meta files of 2014 are written as Python dictionaries."""
    opened: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield f"{path}, line {number}", _parsed(line, f"{path}, line {number}")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise SiglumError(f"{path} cannot be read ({error}).") from error


def _parsed(line: str, place: str) -> JsonObject:
    try:
        record = json.loads(line) if not line.startswith("{'") else ast.literal_eval(line)
    except (ValueError, SyntaxError, RecursionError) as error:
        raise SiglumError(f"{place}: this is no record ({error}); the file may be truncated.") from error
    if not isinstance(record, dict):
        raise SiglumError(f"{place}: a record must be an object, not {shown(record)}.")
    return record


def _dat(path: Path, number: int) -> Iterator[tuple[str, list[str]]]:
    """Yield place and fields of every line of a file of MovieLens."""
    try:
        lines = path.read_text(encoding="latin-1").splitlines()
    except OSError as error:
        raise SiglumError(f"{path} cannot be read ({error.strerror or error}).") from error
    for place, line in enumerate(lines, 1):
        parts = line.split("::")
        if len(parts) != number:
            raise SiglumError(f"{path}, line {place}: {number} fields with :: between them are needed.")
        yield f"{path}, line {place}", parts
