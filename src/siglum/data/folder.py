"""A folder of photographs as a collection: pictures to be found, and captions, where there are any, to find them by."""

from __future__ import annotations

import csv
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote_from_bytes, unquote_to_bytes

from siglum.data.collection import Collection
from siglum.data.corpus import JsonObject, json_records, parquet_records
from siglum.data.stamps import Stamp
from siglum.files import fingerprint
from siglum.given import read_text
from siglum.types import Item, Query, SiglumError

PICTURES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".heic", ".heif", ".avif")
TABLES = (".csv", ".tsv", ".txt", ".jsonl", ".parquet")
USUAL_TABLES = (*(f"captions.{kind}" for kind in ("csv", "tsv", "jsonl", "parquet")), "metadata.jsonl", "metadata.csv")
"""Tables that are looked for in the folder itself; the last two are those of Hugging Face's imagefolder."""
FILE_COLUMNS = ("file_name", "filename", "file", "image", "path", "image_name", "image_path", "file_path", "filepath")
CAPTION_COLUMNS = ("caption", "captions", "text", "sentence", "description", "comment")
CAMERA_WORDS = {"img", "image", "dsc", "dscn", "dscf", "pxl", "mvimg", "pano", "photo", "screenshot"}
"""Words cameras give files; a name of these alone says nothing."""
VALIDATION = 10
"""One picture in so many lends its captions to validation."""


@dataclass(frozen=True, slots=True)
class FolderCollection:
    """The pictures of a folder with what is known of their captions."""

    collection: Collection
    supervised: bool
    """Whether captions lead to pictures; else every picture is its own query."""
    about: str
    """What captions were found, in a sentence."""
    identity: str
    """Fingerprint of the pictures' names, sizes and times, of all captions and of the seed."""
    stamps: dict[str, Stamp]
    """Size and time of every picture by its id."""
    captioned: frozenset[str]
    """Ids of pictures that have captions."""
    unread: dict[str, str]
    """Folders below that cannot be listed, by path, with the reason; what they hold is not known."""
    queries: str = "captions"
    """What its queries are called."""
    scale: str = ""
    """The scale whose settings were chosen on such a folder, if one was."""


def read_folder(folder: Path, captions: str = "auto", seed: int = 0, strict: bool = False) -> FolderCollection:
    """Read a folder of pictures; `captions` says where their captions are.

    sidecar: `a.txt` beside `a.jpg`, one caption a line; FILE or FILE:image_column:caption_column: a table (CSV, TSV,
    JSON lines, parquet); names: the file names as words; none: every picture is its own query; products: those of a
    product catalogue (see `siglum.data.shop`); auto: products.jsonl, else sidecar files, else a table with a usual name
    in the folder, else none. One captioned picture in ten, by a hash of its id and the
    seed, lends its captions to validation. What is a picture by its name is an item; whether it can be read shows when
    it is. A folder below that cannot be listed is put down, or refused if `strict`.
    """
    if not folder.is_dir():
        raise SiglumError(
            f"{folder} {'is not a folder' if folder.exists() else 'does not exist'}; give a folder of pictures."
        )
    if captions == "products" or (captions == "auto" and (folder / "products.jsonl").is_file()):
        from siglum.data.shop import read_shop  # which is a folder too

        return read_shop(folder, seed)
    unread: dict[str, str] = {}
    names = list(_find_pictures(folder, unread))
    if strict and unread:
        raise SiglumError(next(iter(unread.values())))
    if not names:
        lost = f" ({len(unread):,} folders below cannot be read)" if unread else ""
        raise SiglumError(f"{folder} holds no pictures{lost}; looked for {', '.join(PICTURES)} in it and below.")
    found, source = _find_captions(folder, names, captions)
    ids = {name: id_of(name) for name in names}
    stamps = {ids[name]: stamp_of(folder / name) for name in names}
    items = [Item(id=ids[name], image=folder / name) for name in names]
    if found:
        share = f"{len(names):,}" if len(found) == len(names) else f"{len(found):,} of {len(names):,}"
        about = f"{sum(map(len, found.values())):,} captions from {source} for {share} pictures"
    else:
        about = f"{len(names):,} pictures without captions: every picture is its own query"
    return FolderCollection(
        collection=Collection(items, _ask({ids[name]: lines for name, lines in found.items()}, items, seed)),
        supervised=bool(found),
        about=f"{about}; folders that cannot be read: {', '.join(unread)}" if unread else about,
        identity=fingerprint([(i, *(stamp or (None, None))) for i, stamp in stamps.items()], found, seed),
        stamps=stamps,
        captioned=frozenset(ids[name] for name in found),
        unread=unread,
    )


def _ask(captions: Mapping[str, Sequence[str]], items: Sequence[Item], seed: int) -> dict[str, Sequence[Query]]:
    """Return captions by item id as queries of two splits; without captions every picture asks for itself."""
    if not captions:
        return {"train": [Query(id=i.id, image=i.image, task="i2i", positives=(i.id,)) for i in items]}
    train: list[Query] = []
    val: list[Query] = []
    for name, lines in captions.items():
        held_out = int(fingerprint("validation", seed, name), 16) % VALIDATION == 0
        (val if held_out else train).extend(
            Query(id=f"{name}#{place}", text=line, task="t2i", positives=(name,)) for place, line in enumerate(lines)
        )
    return {"train": train, "val": val}


def id_of(name: str) -> str:
    """Return the id of a file: its relative path, with white space and what is not UTF-8 written as in a URL.

    >>> id_of("2024/two dogs.jpg"), path_of(id_of("2024/two dogs.jpg"))
    ('2024/two%20dogs.jpg', '2024/two dogs.jpg')
    """
    return re.sub(r"[\s%\ud800-\udfff]", lambda found: quote_from_bytes(os.fsencode(found[0])), name)


def path_of(item_id: str) -> str:
    """Return the relative path behind an id of `id_of`."""
    return os.fsdecode(unquote_to_bytes(item_id))


def words_of(name: str) -> str:
    """Return a file name as words, without numbers; a name that only a camera would give has none.

    >>> words_of("trip/GoldenRetriever_on-beach02.jpg"), words_of("IMG_2041.jpg")
    ('golden retriever on beach', '')
    """
    stem = re.sub(r"(?<=[a-z\u00df-\u00ff])(?=[A-Z\u00c0-\u00de])", " ", Path(name).stem)
    words = re.findall(r"[^\W\d_]+", stem)
    return "" if CAMERA_WORDS.issuperset(word.lower() for word in words) else " ".join(words).lower()


def _find_pictures(folder: Path, unread: dict[str, str]) -> Iterator[str]:
    """Yield the pictures' paths relative to the folder, posix, in order; what is hidden is passed over.

    Whether they can be read shows when they are. A folder that cannot be listed is put down in `unread`.
    """

    def note(error: OSError) -> None:
        place = Path(error.filename)
        unread[place.relative_to(folder).as_posix()] = f"the folder {place} cannot be read ({error.strerror})."

    for place, folders, files in os.walk(folder, onerror=note):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted([*files, *folders]):
            if not name.startswith(".") and name.lower().endswith(PICTURES):
                yield (Path(place) / name).relative_to(folder).as_posix()


def stamp_of(path: Path) -> Stamp:
    """Return size and time of a file, None where it is no plain file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def _find_captions(folder: Path, names: Sequence[str], captions: str) -> tuple[dict[str, list[str]], str]:
    """Return the captions of every picture that has some, and in words where they come from."""
    how = captions
    if captions == "auto":
        tables = [name for name in USUAL_TABLES if os.path.isfile(folder / name)]
        beside = any(os.path.isfile(_sidecar(folder, name)) for name in names)
        how = "sidecar" if beside else str(folder / tables[0]) if tables else "none"
    if how == "none":
        return {}, ""
    if how == "sidecar":
        found, source = _read_sidecars(folder, names), "sidecar files"
    elif how == "names":
        found, source = {name: [words_of(name)] for name in names}, "file names"
    else:
        found, source = _read_table(folder, names, how)
    kept = {name: list(dict.fromkeys(line.strip() for line in found.get(name, ()) if line.strip())) for name in names}
    kept = {name: lines for name, lines in kept.items() if lines}
    if not kept:
        raise SiglumError(
            f"no captions were found in {source} for the {len(names):,} pictures of {folder}; use --captions none."
        )
    return kept, source


def find_captions(folder: Path, ids: Iterable[str], captions: str = "auto") -> dict[str, list[str]]:
    """Return what captions the pictures of these ids have, without reading the whole folder."""
    names = {path_of(name): name for name in ids}
    with suppress(SiglumError, OSError):  # captions that have gone since are not shown
        found, _ = _find_captions(folder, list(names), captions) if names else ({}, "")
        return {names[name]: lines for name, lines in found.items()}
    return {}


def _sidecar(folder: Path, name: str) -> Path:
    return (folder / name).with_suffix(".txt")


def _read_sidecars(folder: Path, names: Sequence[str]) -> dict[str, list[str]]:
    paths = {name: _sidecar(folder, name) for name in names}
    return {name: read_text(path).splitlines() for name, path in paths.items() if os.path.isfile(path)}


def _read_table(folder: Path, names: Sequence[str], where: str) -> tuple[dict[str, list[str]], str]:
    """Read FILE or FILE:image_column:caption_column; a file name of a row is looked for in the folder."""
    file, *said = where.rsplit(":", 2) if where.count(":") >= 2 else [where]
    path = Path(file) if Path(file).is_file() else folder / file
    if path.suffix.lower() not in TABLES or not path.is_file():
        raise SiglumError(
            f"captions is {where!r}, but must be auto, products, sidecar, names, none or a file that exists"
            f" ({', '.join(TABLES)}), perhaps with columns: FILE:image_column:caption_column."
        )
    rows = list(_rows(path))
    columns = list(dict.fromkeys(column for row in rows for column in row))
    image, caption = _choose_columns(path, columns, said)
    find = _Finder(folder, path.parent, names)
    found: dict[str, list[str]] = {}
    lost = []
    for row in rows:
        name = find(str(row.get(image) or ""))
        value = row.get(caption)
        if name is None:
            lost.append(row.get(image))
        else:
            found.setdefault(name, []).extend(map(str, value) if isinstance(value, list) else [str(value or "")])
    if rows and not found:
        raise SiglumError(
            f"none of the {len(rows):,} rows of {path} names a picture of {folder} in its column {image!r};"
            f" the first says {lost[0]!r}."
        )
    strays = f", where {len(lost):,} rows name no picture here," if lost else ""
    return found, f"{path.name} (columns {image} and {caption}){strays}"


def _rows(path: Path) -> Iterator[JsonObject]:
    if path.suffix.lower() == ".jsonl":
        yield from (record for _, record in json_records(path))
    elif path.suffix.lower() == ".parquet":
        yield from (record for _, record in parquet_records(path))
    else:
        lines = read_text(path).splitlines(keepends=True)
        delimiter = max(",;\t|", key=lines[0].count) if lines else ","
        try:
            for row in csv.DictReader(lines, delimiter=delimiter, skipinitialspace=True):
                yield {name.strip(): value for name, value in row.items() if name is not None}
        except csv.Error as error:
            raise SiglumError(f"{path} is not a table that can be read ({error}).") from error


def _choose_columns(path: Path, columns: Sequence[str], said: Sequence[str]) -> tuple[str, str]:
    """Return the columns of file names and captions: those said, or the first with a usual name."""
    usual = {column.lower(): column for column in reversed(columns)}
    if said:
        chosen = [column if column in columns else None for column in said]
    else:
        chosen = [_first(usual, names) for names in (FILE_COLUMNS, CAPTION_COLUMNS)]
    if None in chosen:
        raise SiglumError(
            f"{path} has the columns {', '.join(columns) or '(none)'}; say which of them hold file names and captions:"
            f" {path.name}:image_column:caption_column."
        )
    image, caption = (str(column) for column in chosen)
    return image, caption


def _first(usual: dict[str, str], names: Iterable[str]) -> str | None:
    return next((usual[name] for name in names if name in usual), None)


class _Finder:
    """Finds the picture a table means: by path from the folder or from the table, else by a name no other has."""

    def __init__(self, folder: Path, beside: Path, names: Sequence[str]) -> None:
        self.folder, self.beside, self.names = folder.resolve(), beside.resolve(), set(names)
        self.short: dict[str, str | None] = {}
        for name in names:
            for key in (Path(name).name, Path(name).stem):
                self.short[key] = name if self.short.get(key, name) == name else None

    def __call__(self, said: str) -> str | None:
        said = said.strip().replace("\\", "/")
        for base in (self.folder, self.beside):
            path = Path(os.path.normpath(base / said))
            if path.is_relative_to(self.folder) and path.relative_to(self.folder).as_posix() in self.names:
                return path.relative_to(self.folder).as_posix()
        return self.short.get(Path(said).name)
