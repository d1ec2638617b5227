"""A small client of the service (`siglum serve`): the same calls, waiting or not.

It needs the package httpx (`pip install 'siglum[client]'`), and nothing else of the library.
Example: `Client("http://127.0.0.1:8000").search("a big red star", k=3)`.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from siglum.types import SiglumError

if TYPE_CHECKING:
    import httpx
    import numpy as np


@dataclass(frozen=True, slots=True)
class FoundItem:
    """One hit, as the service tells of it."""

    id: str
    rank: int
    score: float
    similarity: float | None = None
    text: str | None = None
    image: str | None = None
    """Where its picture is, below the service's address."""
    codes: tuple[int, ...] = ()
    """Told together with the parts."""
    parts: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What a write did; it is on the disk."""

    added: int
    removed: int
    items: int


class RefusedError(SiglumError):
    """What the service refused, in its own sentence, with its code and status."""

    def __init__(self, message: str, code: str, status: int) -> None:
        """Keep what was told."""
        super().__init__(message)
        self.code, self.status = code, status


Image = bytes | str | Path
"""The bytes of a picture's file, or its path."""


class _Calls:
    """What the two clients have in common: requests as they are sent, and answers as they are read."""

    def __init__(self, address: str, key: str | None, timeout: float) -> None:
        self._settings: dict[str, Any] = {"base_url": address.rstrip("/"), "timeout": timeout}
        if key is not None:
            self._settings["headers"] = {"authorization": f"Bearer {key}"}


def _httpx() -> Any:
    try:
        import httpx
    except ImportError as error:
        raise SiglumError(
            "the client needs the package httpx; install it with `pip install 'siglum[client]'`."
        ) from error
    return httpx


def query(
    text: str | None = None, image: Image | None = None, *, item: str | None = None, instruction: str | None = None
) -> dict[str, Any]:
    """Return one query as the service takes it.

    >>> query("two dogs", instruction="Find a picture.")
    {'text': 'two dogs', 'instruction': 'Find a picture.'}
    """
    encoded = None if image is None else encode_image(image)
    given = {"text": text, "image": encoded, "item": item, "instruction": instruction}
    return {name: value for name, value in given.items() if value is not None}


def new_item(id: str, text: str | None = None, image: Image | None = None) -> dict[str, Any]:
    """Return an item to add, as the service takes it.

    >>> new_item("cat-17", "a grey cat")
    {'id': 'cat-17', 'text': 'a grey cat'}
    """
    return {"id": id, **query(text, image)}


def encode_image(image: Image) -> str:
    """Return a picture as the service takes it: its bytes in base64."""
    return b64encode(image if isinstance(image, bytes) else Path(image).read_bytes()).decode()


def _search_body(queries: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> dict[str, Any]:
    return {"queries": list(queries), **{name: value for name, value in options.items() if value is not None}}


def _feature_form(features: Mapping[str, np.ndarray], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return features as a form: a document that says how to search, and rows of float16 beside it."""
    import json

    import numpy as np

    files: dict[str, Any] = {"request": (None, json.dumps(_search_body([{}], options)))}
    for name, rows in features.items():
        files[f"{name}_features"] = (name, np.ascontiguousarray(rows, "<f2").tobytes(), "application/octet-stream")
    return files


def _found(document: Mapping[str, Any]) -> list[list[FoundItem]]:
    return [
        [FoundItem(**{**hit, "codes": tuple(hit.get("codes", ()))}) for hit in hits] for hits in document["results"]
    ]


def _item_place(name: str) -> str:
    return f"/items/{quote(name, safe='')}"


def _read(answer: httpx.Response) -> Any:
    """Return the document of an answer, raising what was refused."""
    try:
        document = answer.json()
    except ValueError:
        document = {}
    if answer.is_success:
        return document
    error = document.get("error", {}) if isinstance(document, dict) else {}
    message = error.get("message", f"the service answers {answer.status_code}.")
    raise RefusedError(message, error.get("code", "unknown"), answer.status_code)


class Client(_Calls):
    """Waits for every answer; threads may share it. Use it as a context, or close it."""

    def __init__(
        self, address: str = "http://127.0.0.1:8000", *, key: str | None = None, timeout: float = 30.0
    ) -> None:
        """Speak with the service at an address; `key` is its API key, if it has one."""
        super().__init__(address, key, timeout)
        self._http: httpx.Client = _httpx().Client(**self._settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def search(
        self, text: str | None = None, image: Image | None = None, *, item: str | None = None, **options: Any
    ) -> list[FoundItem]:
        """Return the hits for words, a picture, both, or an item to begin from; options as `/search` knows them."""
        return self.search_many([query(text, image, item=item)], **options)[0]

    def search_many(self, queries: Sequence[Mapping[str, Any]], **options: Any) -> list[list[FoundItem]]:
        """Return the hits of many queries, each made by `query`."""
        return _found(self._post("/search", _search_body(queries, options)))

    def search_features(self, features: Mapping[str, np.ndarray], **options: Any) -> list[list[FoundItem]]:
        """Return the hits for frozen features, {"image": (N, Di), "text": (N, Dt)}, sent as float16."""
        return _found(_read(self._http.post("/search", files=_feature_form(features, options))))

    def dense(
        self, text: str | None = None, image: Image | None = None, *, item: str | None = None, **options: Any
    ) -> list[FoundItem]:
        """Return what dense search finds for the same."""
        return _found(self._post("/dense", _search_body([query(text, image, item=item)], options)))[0]

    def explain(self, asked: Mapping[str, Any], target: str, **options: Any) -> dict[str, Any]:
        """Return the way of an item through the beam of a query made by `query`."""
        found: dict[str, Any] = self._post("/explain", {"query": dict(asked), "target": target, **options})
        return found

    def add(self, items: Iterable[Mapping[str, Any]], *, upsert: bool = False) -> WriteResult:
        """Add items, each made by `new_item`; they are on the disk when this returns."""
        return WriteResult(**self._post("/items", {"items": list(items), "upsert": upsert}))

    def remove(self, ids: Iterable[str]) -> WriteResult:
        """Remove items; that is on the disk when this returns."""
        return WriteResult(**self._post("/items/remove", {"ids": list(ids)}))

    def item(self, name: str) -> dict[str, Any]:
        """Return what the index keeps of an item."""
        found: dict[str, Any] = _read(self._http.get(_item_place(name)))
        return found

    def image(self, name: str, side: int = 320) -> bytes:
        """Return the picture of an item as a JPEG."""
        answer = self._http.get(f"{_item_place(name)}/image", params={"side": side})
        if not answer.is_success:
            _read(answer)
        return answer.content

    def about(self) -> dict[str, Any]:
        """Return what is served, and the limits of requests."""
        found: dict[str, Any] = _read(self._http.get("/about"))
        return found

    def is_ready(self) -> bool:
        """Return whether requests should be sent there."""
        try:
            return self._http.get("/ready").is_success
        except _httpx().TransportError:
            return False

    def _post(self, place: str, document: Mapping[str, Any]) -> Any:
        return _read(self._http.post(place, json=document))


class AsyncClient(_Calls):
    """The same for programs that have an event loop."""

    def __init__(
        self, address: str = "http://127.0.0.1:8000", *, key: str | None = None, timeout: float = 30.0
    ) -> None:
        """Speak with the service at an address; `key` is its API key, if it has one."""
        super().__init__(address, key, timeout)
        self._http: httpx.AsyncClient = _httpx().AsyncClient(**self._settings)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def search(
        self, text: str | None = None, image: Image | None = None, *, item: str | None = None, **options: Any
    ) -> list[FoundItem]:
        """Return the hits for words, a picture, both, or an item to begin from."""
        return (await self.search_many([query(text, image, item=item)], **options))[0]

    async def search_many(self, queries: Sequence[Mapping[str, Any]], **options: Any) -> list[list[FoundItem]]:
        """Return the hits of many queries, each made by `query`."""
        return _found(await self._post("/search", _search_body(queries, options)))

    async def search_features(self, features: Mapping[str, np.ndarray], **options: Any) -> list[list[FoundItem]]:
        """Return the hits for frozen features, sent as float16."""
        return _found(_read(await self._http.post("/search", files=_feature_form(features, options))))

    async def dense(
        self, text: str | None = None, image: Image | None = None, *, item: str | None = None, **options: Any
    ) -> list[FoundItem]:
        """Return what dense search finds for the same."""
        return _found(await self._post("/dense", _search_body([query(text, image, item=item)], options)))[0]

    async def explain(self, asked: Mapping[str, Any], target: str, **options: Any) -> dict[str, Any]:
        """Return the way of an item through the beam of a query."""
        found: dict[str, Any] = await self._post("/explain", {"query": dict(asked), "target": target, **options})
        return found

    async def add(self, items: Iterable[Mapping[str, Any]], *, upsert: bool = False) -> WriteResult:
        """Add items; they are on the disk when this returns."""
        return WriteResult(**await self._post("/items", {"items": list(items), "upsert": upsert}))

    async def remove(self, ids: Iterable[str]) -> WriteResult:
        """Remove items; that is on the disk when this returns."""
        return WriteResult(**await self._post("/items/remove", {"ids": list(ids)}))

    async def item(self, name: str) -> dict[str, Any]:
        """Return what the index keeps of an item."""
        found: dict[str, Any] = _read(await self._http.get(_item_place(name)))
        return found

    async def image(self, name: str, side: int = 320) -> bytes:
        """Return the picture of an item as a JPEG."""
        answer = await self._http.get(f"{_item_place(name)}/image", params={"side": side})
        if not answer.is_success:
            _read(answer)
        return answer.content

    async def about(self) -> dict[str, Any]:
        """Return what is served, and the limits of requests."""
        found: dict[str, Any] = _read(await self._http.get("/about"))
        return found

    async def is_ready(self) -> bool:
        """Return whether requests should be sent there."""
        try:
            return (await self._http.get("/ready")).is_success
        except _httpx().TransportError:
            return False

    async def _post(self, place: str, document: Mapping[str, Any]) -> Any:
        return _read(await self._http.post(place, json=document))
