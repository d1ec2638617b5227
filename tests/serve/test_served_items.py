from __future__ import annotations

import threading
from base64 import b64encode
from io import BytesIO
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from PIL import Image

from serving import Running, running
from serving_fixtures import live, picture, reading, retriever
from siglum.cli.main import main
from siglum.data.source import write_source
from siglum.lab.world.collection import World
from siglum.run.folder import RunFolder
from siglum.run.snapshots import take_snapshot
from siglum.search.retriever import Retriever

NAMES = ["plain", "with/slash", "dir/image", "ä ö", "50% off", "a?b#c", "..", "."]


def post(live: Running, items: list[dict[str, object]], **more: object) -> dict[str, object]:
    answer = live.http.post("/items", json={"items": items, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


def test_what_is_added_is_found_by_the_next_search_and_there_after_a_restart(live: Running, run_copy: Path) -> None:
    before = len(live.service.served.retriever)
    found = post(live, [{"id": name, "text": f"a zebra number {n}"} for n, name in enumerate(NAMES)])
    assert found == {"added": len(NAMES), "removed": 0, "items": before + len(NAMES)}
    hits = live.search(text="a zebra number 3", within=NAMES)
    assert {hit["id"]: hit["text"] for hit in hits} == {name: f"a zebra number {n}" for n, name in enumerate(NAMES)}
    live.close()
    assert set(NAMES) <= set(Retriever.load(run_copy).index.ids)


@pytest.mark.parametrize("name", NAMES[:6])
def test_any_id_can_be_asked_for_and_removed(live: Running, name: str) -> None:
    post(live, [{"id": name, "text": "a zebra"}])
    place = f"/items/{quote(name, safe='')}"
    assert live.http.get(place).json()["id"] == name
    assert live.http.delete(place).json()["removed"] == 1
    gone = live.http.get(place)
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "not_found")
    assert live.http.delete(place).status_code == 404


def test_a_known_id_is_refused_unless_it_is_to_be_replaced(live: Running) -> None:
    post(live, [{"id": "one", "text": "a zebra"}])
    again = live.http.post("/items", json={"items": [{"id": "two", "text": "b"}, {"id": "one", "text": "a lion"}]})
    assert (again.status_code, again.json()["error"]["code"]) == (409, "conflict")
    assert live.http.get("/items/two").status_code == 404  # all or none
    assert post(live, [{"id": "one", "text": "a lion"}], upsert=True)["removed"] == 1
    assert live.http.get("/items/one").json()["text"] == "a lion"
    twice = live.http.post("/items", json={"items": [{"id": "x", "text": "b"}, {"id": "x", "text": "c"}]})
    assert twice.status_code == 422


def test_many_are_removed_all_or_none(live: Running) -> None:
    post(live, [{"id": name, "text": "a zebra"} for name in ("a", "b", "c")])
    assert live.http.post("/items/remove", json={"ids": ["a", "nobody"]}).status_code == 404
    assert live.http.post("/items/remove", json={"ids": ["a", "b", "a"]}).json()["removed"] == 2
    assert live.http.get("/items/c").status_code == 200


def test_a_picture_of_an_item_is_kept_until_it_goes(live: Running, run_copy: Path, picture: bytes) -> None:
    answer = live.http.post("/items", data={"id": "../../etc/x", "text": "mine"}, files={"image": ("/a.png", picture)})
    assert answer.status_code == 200, answer.text
    folder = run_copy / "pictures"
    (kept,) = folder.iterdir()
    assert kept.name.endswith(".jpg") and len(kept.stem) == 40
    found = live.http.get(f"/items/{quote('../../etc/x', safe='')}").json()
    shown = live.http.get(found["image"])
    assert shown.headers["content-type"] == "image/jpeg"
    assert Image.open(BytesIO(shown.content)).size == (48, 48)
    assert live.search(image=b64encode(picture).decode(), within=["../../etc/x"])[0]["image"] == found["image"]
    other = BytesIO()
    Image.new("RGB", (64, 32), "red").save(other, "PNG")
    post(live, [{"id": "../../etc/x", "image": b64encode(other.getvalue()).decode()}], upsert=True)
    assert kept not in folder.iterdir() and len([*folder.iterdir()]) == 1
    again = live.http.get(f"/items/{quote('../../etc/x', safe='')}").json()
    assert again["image"] != found["image"] and again["text"] is None
    assert Image.open(BytesIO(live.http.get(again["image"], params={"side": 32}).content)).size == (32, 16)
    live.http.post("/items/remove", json={"ids": ["../../etc/x"]})
    assert [*folder.iterdir()] == []


def test_a_snapshot_keeps_the_pictures_it_speaks_of(live: Running, run_copy: Path, picture: bytes) -> None:
    live.http.post("/items", data={"id": "a"}, files={"image": ("a.png", picture)})
    take_snapshot(RunFolder(run_copy), "before")
    live.http.delete("/items/a")
    assert len([*(run_copy / "pictures").iterdir()]) == 1


def test_items_may_be_features(live: Running, retriever: Retriever) -> None:
    row = retriever.encoder.encode_texts(["a zebra"])[0]  # type: ignore[union-attr]
    post(live, [{"id": "numbers", "text": "as features", "features": {"text": row.tolist()}}])
    assert live.search(text="a zebra", within=["numbers"])[0]["text"] == "as features"
    form = {"request": (None, '{"items": [{"id": "bytes"}]}'), "text_features": ("t", row.astype("<f2").tobytes())}
    assert live.http.post("/items", files=form).json()["added"] == 1
    codes = [live.http.get(f"/items/{name}").json()["codes"] for name in ("numbers", "bytes")]
    assert codes[0] == codes[1]
    wrong = live.http.post("/items", files={**form, "text_features": ("t", b"\0" * 7)})
    assert wrong.status_code == 422
    nan = np.full(len(row), np.nan, "<f2").tobytes()
    form = {"request": (None, '{"items": [{"id": "none"}]}'), "text_features": ("t", nan)}
    assert live.http.post("/items", files=form).status_code == 400


def test_writers_at_once_lose_nothing(live: Running, run_copy: Path) -> None:
    def work(thread: int) -> None:
        for number in range(8):
            post(live, [{"id": f"w{thread}.{number}", "text": f"a zebra {thread} {number}"}])
            if number % 2:
                live.http.delete(f"/items/w{thread}.{number - 1}")

    crew = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    live.close()
    here = {name for name in Retriever.load(run_copy).index.ids if name.startswith("w")}
    assert here == {f"w{thread}.{number}" for thread in range(6) for number in (1, 3, 5, 7)}


def test_others_are_told_who_writes(live: Running, run_copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", str(run_copy), "--remove", "x", "--wait", "0"]) == 1
    assert "being written by `siglum serve`" in capsys.readouterr().err
    assert main(["serve", str(run_copy), "--port", "0"]) == 1
    assert "being written by `siglum serve`" in capsys.readouterr().err


def test_a_reader_leaves_the_lock_to_others(run_copy: Path) -> None:
    with running(run_copy, read_only=True) as reader:
        with running(run_copy) as writer:
            post(writer, [{"id": "new", "text": "a zebra"}])
        assert reader.http.get("/items/new").status_code == 404
        reader.service._reload()
        assert reader.http.get("/items/new").status_code == 200


def test_items_are_listed(reading: Running, world: World) -> None:
    first = reading.http.get("/items", params={"limit": 5}).json()
    more = reading.http.get("/items", params={"limit": 5, "offset": 5}).json()
    assert first["total"] == more["total"] == len(reading.service.served.retriever)
    names = [item["id"] for item in (*first["items"], *more["items"])]
    assert names == list(reading.service.served.retriever.index.ids)[:10]
    for item in first["items"]:
        assert item["text"] == world.item(item["id"]).text
        assert (item["image"] is None) == item["id"].endswith("-t")
    assert reading.http.get("/items", params={"offset": 10**9}).json()["items"] == []
    for wrong in ({"limit": 0}, {"limit": 1001}, {"offset": -1}, {"limit": "x"}):
        assert reading.http.get("/items", params=wrong).status_code == 422


def test_pictures_of_a_drawn_world_are_drawn(reading: Running) -> None:
    shown = reading.http.get("/items/s0000000-i/image", params={"side": 64})
    assert Image.open(BytesIO(shown.content)).size == (64, 64)
    assert reading.http.get("/items/s0000000-t/image").status_code == 404
    assert reading.http.get("/items/s0000000-i/image", params={"side": 4096}).status_code == 422


def test_a_picture_file_that_has_gone_is_said_to_have(run_copy: Path, picture: bytes) -> None:
    write_source(run_copy, "world", items=480, seed=0)
    with running(run_copy) as live:
        live.http.post("/items", data={"id": "a"}, files={"image": ("a.png", picture)})
        place = live.http.get("/items/a").json()["image"]
        for file in (run_copy / "pictures").iterdir():
            file.unlink()
        assert live.http.get(place).status_code == 404
        assert live.http.get("/items/a").json()["image"] is None
