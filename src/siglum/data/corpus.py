"""One's own items and queries, as JSON lines or parquet; docs/formats.md shows the fields."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from siglum.data.jsonl import JsonObject as JsonObject
from siglum.data.jsonl import scan_lines
from siglum.data.parquet import load_pyarrow
from siglum.data.trec import read_qrels
from siglum.files import atomic
from siglum.given import check_id, encodable
from siglum.types import Item, Picture, Query, SiglumError, one_of, shown

ITEM_FIELDS = ("id", "text", "image")
QUERY_FIELDS = ("id", "text", "image", "instruction", "task", "positives")
SUFFIXES = (".jsonl", ".parquet")


def read_items(path: Path) -> list[Item]:
    """Read items; each needs an id of its own and a text, an image or both."""
    return [
        Item(id=row.id, text=row.string("text"), image=row.picture())
        for row in _rows(path, ITEM_FIELDS, _records(path))
    ]


def read_queries(path: Path, qrels: Path | None = None) -> list[Query]:
    """Read queries; their positives come from the file itself or from a qrels file (grades above 0), not both."""
    judged = None if qrels is None else read_qrels(qrels)
    queries = []
    for row in _rows(path, QUERY_FIELDS, _records(path)):
        positives = row.ids("positives")
        if judged is not None:
            if positives:
                raise SiglumError(f"{row.where}: the query has positives, but {qrels} is given too; keep one of them.")
            positives = tuple(item for item, grade in judged.get(row.id, {}).items() if grade > 0)
        queries.append(
            Query(
                id=row.id,
                text=row.string("text"),
                image=row.picture(),
                instruction=row.string("instruction"),
                task=row.string("task") or "",
                positives=positives,
            )
        )
    unknown = [] if judged is None else list(judged.keys() - {query.id for query in queries})
    if unknown:
        raise SiglumError(
            f"{qrels} judges {len(unknown)} queries that are not in {path}, such as {shown(min(unknown))}."
        )
    return queries


def write_items(path: Path, items: Iterable[Item]) -> None:
    """Write items as JSON lines or parquet, by the file's suffix; pictures must be files."""
    _write(path, ITEM_FIELDS, ({"id": x.id, "text": x.text, "image": _portable(path, x.id, x.image)} for x in items))


def write_queries(path: Path, queries: Iterable[Query]) -> None:
    """Write queries with their positives as JSON lines or parquet, by the file's suffix; pictures must be files."""
    records: Iterator[JsonObject] = (
        {
            "id": query.id,
            "text": query.text,
            "image": _portable(path, query.id, query.image),
            "instruction": query.instruction,
            "task": query.task or None,
            "positives": list(query.positives) or None,
        }
        for query in queries
    )
    _write(path, QUERY_FIELDS, records)


def check_positives(queries: Iterable[Query], item_ids: Collection[str]) -> None:
    """Refuse positives that are not among the items, naming the first and how many there are."""
    known = frozenset(item_ids)
    unknown = [(query.id, item) for query in queries for item in query.positives if item not in known]
    if unknown:
        query, item = unknown[0]
        raise SiglumError(
            f"{len(unknown)} positives are not among the {len(known)} items,"
            f" the first being {shown(item)} of query {shown(query)}; add those items or drop the positives."
        )


@dataclass(frozen=True, slots=True)
class _Row:
    """One record with the place it came from; absent, null and blank strings are the same."""

    where: str
    folder: Path
    values: Mapping[str, object]

    @property
    def id(self) -> str:
        value = self.values.get("id")
        if value is None:
            raise SiglumError(f"{self.where}: the field id is missing.")
        return self._id("id", value)

    def _id(self, name: str, value: object) -> str:
        text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        if not isinstance(text, str) or not encodable(text):
            raise self._wrong(name, value, "a string or a whole number")
        check_id(text, f"{self.where}: the id {shown(text)} in {name}")
        return text

    def ids(self, name: str) -> tuple[str, ...]:
        value = self.values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list):
            raise self._wrong(name, value, "a list of ids")
        return tuple(dict.fromkeys(self._id(name, entry) for entry in value))

    def string(self, name: str) -> str | None:
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, str) or not encodable(value):
            raise self._wrong(name, value, "a string")
        return value if value.strip() else None

    def picture(self) -> Path | None:
        name = self.string("image")
        return None if name is None else self.folder / name

    def check(self, fields: Sequence[str]) -> None:
        unknown = [name for name in self.values if name not in fields]
        if unknown:
            raise SiglumError(f"{self.where}: unknown field {shown(unknown[0])}; the fields are {', '.join(fields)}.")
        self.string("instruction"), self.string("task"), self.ids("positives")
        if self.string("text") is None and self.string("image") is None:
            raise SiglumError(f"{self.where}: {shown(self.id)} has neither a text nor an image; give it one of them.")

    def _wrong(self, name: str, value: object, wanted: str) -> SiglumError:
        return SiglumError(f"{self.where}: the field {name} is {value!r:.60}, but must be {wanted}.")


def _rows(path: Path, fields: Sequence[str], records: Iterable[tuple[str, JsonObject]]) -> Iterator[_Row]:
    """Yield the records as checked rows, refusing an id that comes twice and a file without records."""
    seen: dict[str, str] = {}
    for where, values in records:
        row = _Row(f"{path}, {where}", path.parent, values)
        row.check(fields)
        if row.id in seen:
            raise SiglumError(
                f"{row.where}: the id {shown(row.id)} was used before, in {seen[row.id]}; ids must differ."
            )
        seen[row.id] = where
        yield row
    if not seen:
        raise SiglumError(f"{path} is empty; it needs at least one record with the fields {', '.join(fields)}.")


def _records(path: Path) -> Iterator[tuple[str, JsonObject]]:
    return parquet_records(path) if _suffix(path) == ".parquet" else json_records(path)


def _suffix(path: Path) -> str:
    return one_of(f"the suffix of {path}", path.suffix, SUFFIXES)


def json_records(path: Path) -> Iterator[tuple[str, JsonObject]]:
    """Yield the objects of a file of JSON lines, each with the place it stands at."""
    for _, where, record in scan_lines(path):
        yield where.removeprefix(f"{path}, "), record


def parquet_records(path: Path) -> Iterator[tuple[str, JsonObject]]:
    """Yield the rows of a parquet file, each with the place it stands at."""
    pa, pq = load_pyarrow()

    if not path.is_file():
        raise SiglumError(f"{path} cannot be read: no such file.")
    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=10_000):
                for record in batch.to_pylist():
                    number += 1
                    yield f"row {number}", record
    except (pa.ArrowException, OSError) as error:
        raise SiglumError(f"{path} is not a whole parquet file ({error}); it may be truncated.") from error


def _portable(path: Path, owner: str, picture: Picture | None) -> str | None:
    """Return the picture's path as it is written: relative where the file lies in the same folder or below."""
    if picture is None:
        return None
    if not isinstance(picture, str | Path):
        raise SiglumError(f"the picture of {owner!r} is not a file, so it cannot be written to {path}; save it first.")
    target, folder = Path(picture).absolute(), path.parent.absolute()
    return str(target.relative_to(folder) if target.is_relative_to(folder) else target)


def _write(path: Path, fields: Sequence[str], records: Iterable[JsonObject]) -> None:
    """Write records that could be read back, and no others."""
    suffix = _suffix(path)
    named = ((f"record {number}", record) for number, record in enumerate(records, 1))
    checked = [dict(row.values) for row in _rows(path, fields, named)]
    with atomic(path) as file:
        if suffix == ".parquet":
            _write_parquet(file, fields, checked)
            return
        for record in checked:
            kept = {name: value for name, value in record.items() if value is not None}
            file.write((json.dumps(kept, ensure_ascii=False) + "\n").encode())


def _write_parquet(file: IO[bytes], fields: Sequence[str], records: list[JsonObject]) -> None:
    pa, pq = load_pyarrow()

    kinds = {name: pa.list_(pa.string()) if name == "positives" else pa.string() for name in fields}
    pq.write_table(pa.Table.from_pylist(records, schema=pa.schema(kinds)), file)
