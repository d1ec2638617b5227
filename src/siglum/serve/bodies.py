"""Requests as they come, JSON or multipart, read into checked documents."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from siglum.serve.errors import ServiceError
from siglum.serve.forms import FormPart, read_form
from siglum.serve.schema import refusal
from siglum.types import shown

B = TypeVar("B", bound=BaseModel)
WHOLE, REAL, TRUTH = ("k", "beam", "best", "pruned"), ("omega", "min_score"), ("parts", "upsert")


@dataclass(slots=True)
class Attachments:
    """What a form brings beside its document: pictures by place, and features as float16."""

    pictures: dict[int, bytes] = field(default_factory=dict)
    features: dict[str, bytes] = field(default_factory=dict)


async def read_body(request: Request, kind: type[B], row: str) -> tuple[B, Attachments]:
    """Return the document of a request and what comes with it; `row` names its list, or its one object."""
    sort = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if sort == "application/json":
        return _validated(kind, await request.body()), Attachments()
    if sort == "multipart/form-data":
        return _read_form(read_form(request.headers["content-type"], await request.body()), kind, row)
    raise ServiceError(
        "unsupported_media_type",
        f"send application/json or multipart/form-data, not {shown(sort) if sort else 'nothing'}.",
    )


def _validated(kind: type[B], content: bytes) -> B:
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        raise refusal(error) from None


def _read_form(form: Sequence[FormPart], kind: type[B], row: str) -> tuple[B, Attachments]:
    """Read a form: a document in `request`, or its fields one by one, with pictures and features beside it."""
    parts, fields = Attachments(), dict[str, str]()
    for part in form:
        head, _, place = part.name.partition(".")
        if head == "image" and part.is_file:
            if not (place or "0").isascii() or not (place or "0").isdigit() or len(place) > 6:
                raise ServiceError("bad_request", f"a picture is named image or image.N, not {shown(part.name)}.")
            parts.pictures[int(place or 0)] = part.content
        elif part.name in ("image_features", "text_features"):
            parts.features[part.name.removesuffix("_features")] = part.content
        elif part.is_file and part.name != "request":
            raise ServiceError(
                "bad_request", f"the part {shown(part.name)} is unknown; files are image, image.N or features."
            )
        else:
            fields[part.name] = part.content.decode("utf-8", "replace")
    if "request" in fields:
        if len(fields) > 1:
            raise ServiceError("bad_request", "the part request says all; leave the other fields out.")
        return _validated(kind, fields["request"].encode("utf-8", "replace")), parts
    own = {name: fields.pop(name) for name in ("text", "instruction", "item", "id") if name in fields}
    values: dict[str, Any] = {name: _value(name, text) for name, text in fields.items()}
    document = {**values, row: own if row == "query" else [own]}
    return _validated(kind, json.dumps(document).encode()), parts


def _value(name: str, text: str) -> Any:
    """Return the value of a form's field, which is text; what is no number is refused later, by its type."""
    try:
        if name in WHOLE:
            return int(text[:20])
        if name in REAL:
            return float(text[:40])
    except ValueError:
        return text
    if name in TRUTH:
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
    if name in ("within", "without", "kinds"):
        return [word for word in text.split(",") if word]
    return text
