from __future__ import annotations

import asyncio
import os
import signal
import struct
import time
import zlib
from base64 import b64encode
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from serving import Running
from serving_fixtures import reading
from siglum.data.pictures import load_picture
from siglum.serve.errors import ServiceError
from siglum.serve.pictures import Decoders, PictureCache


def soon() -> float:
    return time.monotonic() + 10


def bomb(width: int = 60_000, height: int = 60_000) -> bytes:
    """Return a small PNG that says it is huge."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(9999))) + chunk(b"IEND", b"")
    )


def saved(size: tuple[int, int], kind: str) -> bytes:
    file = BytesIO()
    Image.effect_noise(size, 80).convert("RGB").save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_pictures_are_decoded_as_the_library_does(kind: str) -> None:
    content = saved((120, 80), kind)

    async def work() -> tuple[np.ndarray, bytes]:
        decoders = Decoders(1, 1_000_000)
        found = await decoders.pixels(content, 48, "centre", soon()), await decoders.jpeg(content, 60, soon())
        await decoders.close()
        return found

    pixels, small = asyncio.run(work())
    assert np.array_equal(pixels, load_picture(content, 48, "centre"))
    assert Image.open(BytesIO(small)).size == (60, 40)


BAD = {
    "a bomb": (bomb(), "3600000000 pixels|exceeds limit"),
    "too many pixels": (saved((1100, 1000), "JPEG"), "above the limit of 1000000"),
    "nothing": (b"", "empty"),
    "a text": (b"hello", "of no known kind"),
    "half a picture": (saved((300, 300), "PNG")[:2000], "cannot be read"),
    "an SVG": (b"<svg xmlns='http://www.w3.org/2000/svg'><image href='http://example.com'/></svg>", "of no known kind"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_picture_is_refused_and_the_decoder_lives(name: str) -> None:
    content, said = BAD[name]

    async def work() -> set[int]:
        decoders = Decoders(1, 1_000_000)
        await decoders.start()
        before = set(decoders.pids)
        with pytest.raises(ServiceError, match=said):
            await decoders.pixels(content, 48, "whole", soon())
        assert (await decoders.pixels(saved((9, 9), "PNG"), 4, "whole", soon())).shape == (4, 4, 3)
        assert decoders.pids == before
        await decoders.close()
        return before

    assert len(asyncio.run(work())) == 1


def test_a_decoder_that_dies_or_hangs_is_replaced() -> None:
    restarts: list[int] = []

    async def work() -> None:
        decoders = Decoders(1, 1_000_000, lambda: restarts.append(1))
        await decoders.start()
        (pid,) = decoders.pids
        os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(0.2)
        content = saved((9, 9), "PNG")
        assert (await decoders.pixels(content, 4, "whole", soon())).shape == (4, 4, 3)
        (pid,) = decoders.pids
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(ServiceError, match="could not be read within"):
            await decoders.pixels(content, 4, "whole", time.monotonic() + 0.3)
        assert (await decoders.pixels(content, 4, "whole", soon())).shape == (4, 4, 3)
        await decoders.close()

    asyncio.run(work())
    assert restarts == [1, 1]


def test_a_bomb_takes_nothing_down(reading: Running) -> None:
    for _ in range(3):
        body = {"queries": [{"image": b64encode(bomb()).decode()}]}
        answer = reading.http.post("/search", json=body)
        assert answer.status_code == 400 and "pixels" in answer.json()["error"]["message"]
    assert reading.http.get("/health").status_code == 200


def test_the_cache_keeps_the_latest_up_to_its_bytes() -> None:
    cache = PictureCache(10)
    for name in "abc":
        cache.put((name,), b"1234")
    assert cache.get(("a",)) is None and cache.get(("b",)) == b"1234"
    cache.put(("d",), b"1234")
    assert cache.get(("c",)) is None and cache.get(("b",)) == b"1234"
    cache.put(("b",), b"12")
    assert cache._bytes == 6
