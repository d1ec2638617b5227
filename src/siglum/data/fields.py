"""What a run keeps of its items to show them by: the text, and the file of the picture, as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from siglum.data.pictures import file_of
from siglum.given import encodable
from siglum.types import Item, SiglumError, shown


def write_fields(item: Item) -> str:
    """Return what is kept of an item; nothing where it has neither text nor picture file.

    >>> write_fields(Item(id="a", text="a cat")), write_fields(Item(id="b"))
    ('{"text":"a cat"}', '')
    """
    file = file_of(item.image)
    given = {"text": item.text, "image": None if file is None else str(file.absolute())}
    kept = {name: value for name, value in given.items() if value}
    text = json.dumps(kept, ensure_ascii=False, separators=(",", ":")) if kept else ""
    # A file's name may hold what is not UTF-8.
    return text if encodable(text) else json.dumps(kept, separators=(",", ":"))


def read_fields(kept: str) -> tuple[str | None, Path | None]:
    """Return the text and the picture file of an item.

    >>> read_fields('{"text":"a cat"}')
    ('a cat', None)
    """
    try:
        values = json.loads(kept or "{}")
        text, image = values.get("text"), values.get("image")
        return text, None if image is None else Path(image)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise SiglumError(f"what is kept of an item is damaged ({shown(kept)}); make the index again.") from error


def without_images(kept: str) -> str:
    """Return what is kept of an item without the file of its picture, which is of one machine.

    >>> without_images('{"text":"a cat","image":"/cats/1.jpg"}')
    '{"text":"a cat"}'
    """
    text, _ = read_fields(kept)
    return write_fields(Item(id="", text=text))


def fields_in_order(items: Iterable[Item], ids: Sequence[str]) -> list[str]:
    """Return what is kept of those items that have these ids, which stand in the order of the items."""
    kept: list[str] = []
    for item in items:
        if len(kept) < len(ids) and item.id == ids[len(kept)]:
            kept.append(write_fields(item))
    return kept


def fields_by_id(items: Iterable[Item], ids: Sequence[str]) -> list[str]:
    """Return what is kept of the items of these ids, nothing of one that is not among the items."""
    kept = {item.id: write_fields(item) for item in items}
    return [kept.get(name, "") for name in ids] if kept else []
