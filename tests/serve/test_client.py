from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from serving import Running, running
from serving_fixtures import picture, reading, retriever
from siglum.client import AsyncClient, Client, RefusedError, new_item, query
from siglum.search.retriever import Retriever
from siglum.types import SiglumError

WORDS = "a big red star left of a blue ring"


def test_it_finds_what_the_library_finds(
    reading: Running, retriever: Retriever, picture: bytes, tmp_path: Path
) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(picture)
    with Client(reading.address) as client:
        assert client.is_ready()
        found, wanted = client.search(WORDS, k=3, parts=True), retriever.search(WORDS, k=3)
        assert [(one.id, one.rank, one.codes) for one in found] == [(h.item_id, h.rank, h.codes) for h in wanted]
        with_picture = [hit.item_id for hit in retriever.search("but blue", image=picture, k=3)]
        for image in (picture, file, str(file)):
            assert [one.id for one in client.search("but blue", image, k=3)] == with_picture
        many = client.search_many([query(WORDS), query(item="s0000000-i")], k=2, beam=20, parts=True)
        assert len(many) == 2 and many[0][0].parts is not None
        rows = retriever.encoder.encode_texts([WORDS] * 2)  # type: ignore[union-attr]
        assert [one.id for one in client.search_features({"text": rows}, k=3)[1]] == [hit.item_id for hit in wanted]
        assert len(client.dense(WORDS, k=4)) == 4
        assert client.explain(query(WORDS), "s0000000-i", beam=3)["beam"] == 3
        assert client.item("s0000000-i")["id"] == "s0000000-i"
        assert client.image("s0000000-i", 64)[:2] == b"\xff\xd8"
        assert client.about()["encoder"] == "builtin"


def test_it_raises_what_the_service_refuses(reading: Running) -> None:
    with Client(reading.address) as client:
        with pytest.raises(RefusedError, match="there is no item 'nobody'") as told:
            client.item("nobody")
        assert (told.value.code, told.value.status) == ("not_found", 404)
        with pytest.raises(SiglumError, match="no picture"):
            client.image("s0000000-t")
        with pytest.raises(RefusedError, match="only reads"):
            client.remove(["s0000000-i"])
    with Client("http://127.0.0.1:9") as nobody:
        assert not nobody.is_ready()


def test_it_writes(run_copy: Path) -> None:
    with running(run_copy) as live, Client(live.address) as client:
        assert client.add([new_item("dir/a", "a zebra")]).added == 1
        assert client.item("dir/a")["text"] == "a zebra"
        assert client.add([new_item("dir/a", "a lion")], upsert=True).removed == 1
        assert client.remove(["dir/a"]).removed == 1


def test_it_need_not_wait(run_copy: Path, retriever: Retriever, picture: bytes) -> None:
    async def work(address: str) -> None:
        async with AsyncClient(address) as client:
            assert await client.is_ready()
            first, second = await asyncio.gather(client.search(WORDS, k=3), client.search(image=picture, k=3))
            assert [one.id for one in first] == [hit.item_id for hit in retriever.search(WORDS, k=3)]
            assert len(second) == 3
            assert (await client.add([new_item("a", "a zebra")])).added == 1
            assert (await client.item("a"))["text"] == "a zebra"
            rows = np.zeros((1, 512))
            rows[0, 3] = 1
            assert len((await client.search_features({"text": rows}, k=2))[0]) == 2
            assert len(await client.dense(WORDS)) == 10
            assert (await client.explain(query(WORDS), "a"))["target"] == "a"
            assert (await client.remove(["a"])).removed == 1
            assert (await client.about())["items"] > 0
            with pytest.raises(RefusedError, match="no picture"):
                await client.image("s0000000-t")
        async with AsyncClient("http://127.0.0.1:9") as nobody:
            assert not await nobody.is_ready()

    with running(run_copy) as live:
        asyncio.run(work(live.address))
