"""Requests that no client should send: each is decided by its number, and must be answered without an error of ours."""

from __future__ import annotations

import json
from random import Random
from typing import Any

WORDS = ["", "a", "a star", "\x00", "🦓" * 40, "a" * 20_000, "../../etc/passwd", "<script>", "\ud800", "%00", "'; --"]
NUMBERS: list[Any] = [0, 1, -1, 3, 10**9, 10**30, 1.5, -0.0, 1e308, True, None, "3", [], {}]
PLACES = ["/search", "/dense", "/explain", "/items", "/items/remove"]
TYPES = [
    "application/json",
    "text/plain",
    "multipart/form-data",
    "multipart/form-data; boundary=x",
    "",
    "application/xml",
]
Sent = tuple[str, str, dict[str, str], bytes]
"""Method, path, headers and body of a request."""


def request(number: int) -> Sent:
    """Return a malformed request."""
    dice = Random(f"malformed {number}")
    kind = dice.choice([_document, _document, _document, _form, _bytes, _path, _headers, _damaged])
    method, path, headers, body = kind(dice)
    return method, path, headers, body


def _value(dice: Random, depth: int = 0) -> Any:
    pick = dice.random()
    if pick < 0.35:
        return dice.choice(WORDS)
    if pick < 0.7 or depth > 2:
        return dice.choice(NUMBERS)
    if pick < 0.85:
        return [_value(dice, depth + 1) for _ in range(dice.randrange(4))]
    return {dice.choice(["text", "image", "item", "features", "id", "x"]): _value(dice, depth + 1) for _ in range(3)}


def _query(dice: Random) -> Any:
    if dice.random() < 0.3:
        return _value(dice)
    return {name: _value(dice) for name in dice.sample(["text", "image", "item", "instruction", "features", "y"], 2)}


def _fields(dice: Random) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "queries": [_query(dice) for _ in range(dice.randrange(4))] if dice.random() < 0.8 else _value(dice),
        "query": _query(dice),
        "target": _value(dice),
        "items": [{"id": _value(dice), **(_query(dice) if False else {"text": _value(dice)})}],
        "ids": [_value(dice)],
    }
    kept = dice.sample(sorted(fields), dice.randrange(1, 4))
    more = ["k", "beam", "omega", "mode", "within", "without", "kinds", "min_score", "parts", "best", "upsert", "z"]
    return {name: fields[name] for name in kept} | {name: _value(dice) for name in dice.sample(more, dice.randrange(4))}


def _document(dice: Random) -> Sent:
    document = _fields(dice) if dice.random() < 0.9 else _value(dice)
    return "POST", dice.choice(PLACES), {"content-type": "application/json"}, json.dumps(document).encode()


def _form(dice: Random) -> Sent:
    names = ["text", "image", "image.1", "image.x", "image_features", "text_features", "request", "k", "id", "target"]
    lines = []
    for name in dice.sample(names, dice.randrange(1, 5)):
        file = f'; filename="{dice.choice(["a.png", "../../x", ""])}"' if dice.random() < 0.5 else ""
        content = dice.randbytes(dice.randrange(300)) if dice.random() < 0.5 else json.dumps(_value(dice)).encode()
        lines += [b"--x", f'Content-Disposition: form-data; name="{name}"{file}'.encode(), b"", content]
    body = b"\r\n".join([*lines, dice.choice([b"--x--", b"--x", b""]), b""])
    return "POST", dice.choice(PLACES), {"content-type": "multipart/form-data; boundary=x"}, body


def _bytes(dice: Random) -> Sent:
    return "POST", dice.choice(PLACES), {"content-type": dice.choice(TYPES)}, dice.randbytes(dice.randrange(3000))


def _path(dice: Random) -> Sent:
    rest = "".join(
        dice.choice(["a", "/", "..", "%00", "%2F", "%ff", "image", "?", "=", "%F0%9F%A6%93", "&side=1"])
        for _ in range(8)
    )
    return dice.choice(["GET", "DELETE", "POST", "PUT", "HEAD", "OPTIONS"]), f"/items/{rest}", {}, b""


def _headers(dice: Random) -> Sent:
    headers = {
        "content-type": dice.choice(TYPES),
        dice.choice(["origin", "host", "authorization", "x-api-key", "cookie", "range"]): "x" * dice.randrange(2000),
    }
    return "POST", "/search", headers, b'{"queries": [{"text": "a star"}]}'


def _damaged(dice: Random) -> Sent:
    """Return a sound request with a few bytes changed, or cut off, or nested without end."""
    if dice.random() < 0.1:
        body = b'{"queries":' + b"[" * 50_000
    else:
        content = bytearray(b'{"queries": [{"text": "a big red star", "instruction": "find"}], "k": 3, "beam": 4}')
        for _ in range(dice.randrange(1, 4)):
            content[dice.randrange(len(content))] = dice.randrange(256)
        body = bytes(content[: dice.randrange(1, len(content) + 1)])
    return "POST", dice.choice(PLACES[:3]), {"content-type": "application/json"}, body
