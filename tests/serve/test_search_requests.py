from __future__ import annotations

import json
import threading
from base64 import b64encode
from typing import Any

import numpy as np
import pytest

from serving import Running
from serving_fixtures import picture, reading, retriever
from siglum.lab.world.collection import World
from siglum.measure.explain import explain
from siglum.search.retriever import Retriever

WORDS = ["a big red star left of a blue ring", "three green hearts", "two small squares on a pink ground"]


FIELDS = ("rank", "id", "score", "similarity", "text", "image")


def ids(hits: list[dict[str, Any]]) -> list[str]:
    return [hit["id"] for hit in hits]


@pytest.mark.parametrize("options", [{}, {"beam": 3}, {"omega": 1.0}, {"mode": "scan"}, {"k": 1}], ids=str)
def test_the_service_finds_what_the_library_finds(
    reading: Running, retriever: Retriever, options: dict[str, Any]
) -> None:
    body = {"queries": [{"text": words} for words in WORDS], **options}
    found = reading.http.post("/search", json=body).json()
    wanted = retriever.search(WORDS, **{"k": 10, **options})
    assert [ids(hits) for hits in found["results"]] == [[hit.item_id for hit in hits] for hits in wanted]
    first, same = found["results"][0][0], wanted[0][0]
    assert first["score"] == pytest.approx(same.score, abs=1e-4)
    assert first["similarity"] == pytest.approx(same.similarity, abs=1e-5)
    assert (first["rank"], first["text"]) == (1, same.text) and set(first) == {*FIELDS}
    assert found["items"] == len(retriever)


def test_many_clients_at_once_get_the_answers_of_one(reading: Running, retriever: Retriever) -> None:
    found: dict[str, list[str]] = {}

    def ask(words: str) -> None:
        found[words] = ids(reading.search(text=words, k=5))

    texts = [
        f"{count} {colour} {shape}"
        for count in ("two", "three")
        for colour in ("red", "blue", "green")
        for shape in ("stars", "rings", "hearts")
    ]
    crew = [threading.Thread(target=ask, args=(words,)) for words in texts]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    assert found == {words: [hit.item_id for hit in retriever.search(words, k=5)] for words in texts}


def test_a_picture_comes_in_base64_or_in_a_form(reading: Running, retriever: Retriever, picture: bytes) -> None:
    wanted = [hit.item_id for hit in retriever.search("but blue", image=picture, k=4)]
    encoded = b64encode(picture).decode()
    assert ids(reading.search(text="but blue", image=encoded, k=4)) == wanted
    form = reading.http.post("/search", data={"text": "but blue", "k": "4"}, files={"image": ("a.png", picture)})
    assert ids(form.json()["results"][0]) == wanted
    request = json.dumps({"queries": [{"text": "a star"}, {"text": "but blue"}], "k": 4})
    form = reading.http.post("/search", files={"request": (None, request), "image.1": ("a.png", picture)})
    assert ids(form.json()["results"][1]) == wanted


def test_features_come_as_numbers_or_as_float16(reading: Running, retriever: Retriever) -> None:
    rows = retriever.encoder.encode_texts(WORDS).astype(np.float16)  # type: ignore[union-attr]
    wanted = [[hit.item_id for hit in hits] for hits in retriever.search(WORDS, k=3)]
    queries = [{"features": {"text": row.astype(float).tolist()}} for row in rows]
    found = reading.http.post("/search", json={"queries": queries, "k": 3}).json()["results"]
    assert [ids(hits) for hits in found] == wanted
    form = {"request": (None, json.dumps({"queries": [{}], "k": 3})), "text_features": ("t", rows.tobytes())}
    found = reading.http.post("/search", files=form).json()["results"]
    assert [ids(hits) for hits in found] == wanted


def test_an_item_is_a_query_too(reading: Running, world: World, retriever: Retriever) -> None:
    item = next(name for name in retriever.index.ids if name.endswith("-i"))
    drawn = world.item(item).image
    wanted = [hit.item_id for hit in retriever.search(None, image=drawn.pixels(48), k=3)]  # type: ignore[union-attr]
    assert ids(reading.search(item=item, k=3)) == wanted
    assert ids(reading.search(item=item, k=3, without=[item]))[0] != item
    edited = retriever.search("but blue", image=drawn.pixels(48), k=3)  # type: ignore[union-attr]
    assert ids(reading.search(item=item, text="but blue", k=3)) == [hit.item_id for hit in edited]
    text = next(name for name in retriever.index.ids if name.endswith("-t"))
    words = f"{world.item(text).text} but blue"
    assert ids(reading.search(item=text, text="but blue", k=3)) == [hit.item_id for hit in retriever.search(words, k=3)]


def test_filters_leave_out_what_they_say(reading: Running, retriever: Retriever) -> None:
    some = list(retriever.index.ids)[:7]
    assert set(ids(reading.search(text=WORDS[0], within=some, k=20, beam=50))) <= set(some)
    assert not set(ids(reading.search(text=WORDS[0], without=some, k=20))) & set(some)
    for kind, end in (("image", "-i"), ("text", "-t"), ("both", "-it")):
        found = ids(reading.search(text=WORDS[0], kinds=[kind], k=20, beam=50))
        assert found and all(name.endswith(end) for name in found)
    assert set(ids(reading.search(text=WORDS[0], kinds=["text"], within=some, k=20))) <= {
        n for n in some if n[-1] == "t"
    }
    assert reading.search(text=WORDS[0], within=[]) == []
    assert reading.search(text=WORDS[0], min_score=1e9) == []


def test_parts_of_a_score_are_its_sum(reading: Running) -> None:
    hits = reading.search(text=WORDS[0], parts=True, k=5)
    assert len(hits) == 5
    for hit in hits:
        assert hit["codes"] == reading.http.get(f"/items/{hit['id']}").json()["codes"]
        assert set(hit["parts"]) == {"log_probability", "geometry"}
        assert sum(hit["parts"].values()) == pytest.approx(hit["score"], abs=1e-3)


def test_dense_search_stands_beside_it(reading: Running) -> None:
    body = {"queries": [{"text": words} for words in WORDS], "k": 4}
    found = reading.http.post("/dense", json=body).json()["results"]
    assert [len(hits) for hits in found] == [4, 4, 4]
    scores = [hit["similarity"] for hit in found[0]]
    assert scores == sorted(scores, reverse=True) and 0 < scores[0] < 1
    kept = reading.http.post("/dense", json={**body, "kinds": ["image"]}).json()["results"][0]
    assert kept and all(hit["id"].endswith("-i") for hit in kept)
    assert reading.http.post("/dense", json={**body, "within": []}).json()["results"] == [[], [], []]


def test_a_target_is_followed_through_the_beam(reading: Running, retriever: Retriever) -> None:
    target = next(name for name in retriever.index.ids if name.endswith("-i"))
    body = {"query": {"text": WORDS[0]}, "target": target, "beam": 4, "best": 4, "pruned": 2}
    found = reading.http.post("/explain", json=body).json()
    wanted = explain(retriever, WORDS[0], target, beam=4)
    assert [level["target"]["rank"] for level in found["levels"]] == [level.target.rank for level in wanted.levels]
    assert found["rank"] == wanted.rank and found["beam"] == 4
    for level in found["levels"]:
        assert all(one["kept"] for one in level["best"]) and not any(one["kept"] for one in level["pruned"])
        assert len(level["pruned"]) == min(2, level["candidates"] - level["kept"])
    shown = {name for level in found["levels"] for one in level["best"] for name in one["examples"][:1]}
    assert shown <= set(found["items"]) and target in found["items"]
    kinds = reading.http.post("/explain", json={**body, "kinds": ["image"]}).json()
    assert kinds["levels"][0]["prefixes"] == 1


FEATURES = {"features": {"text": [1.0, 2.0]}}
REFUSED: list[tuple[str, int, str, dict[str, Any] | bytes]] = [
    ("/search", 400, "bad_request", b"{"),
    ("/search", 422, "invalid", {}),
    ("/search", 422, "invalid", {"queries": []}),
    ("/search", 422, "invalid", {"queries": [{}]}),
    ("/search", 422, "invalid", {"queries": [{"text": ""}]}),
    ("/search", 422, "invalid", {"queries": [{"text": 3}]}),
    ("/search", 422, "invalid", {"queries": [{"words": "a"}]}),
    ("/search", 422, "invalid", {"queries": [{"text": "a"}], "k": 0}),
    ("/search", 422, "invalid", {"queries": [{"text": "a"}], "k": 501}),
    ("/search", 422, "invalid", {"queries": [{"text": "a"}], "k": True}),
    ("/search", 422, "invalid", {"queries": [{"text": "a"}], "beam": 1001}),
    ("/search", 422, "invalid", {"queries": [{"text": "a"}], "mode": "dense"}),
    ("/search", 422, "invalid", {"queries": [{"text": "a"}], "kinds": ["film"]}),
    ("/search", 422, "invalid", {"queries": [{"text": "a"}] * 257}),
    ("/search", 422, "invalid", {"queries": [{"text": "a" * 10_001}]}),
    ("/search", 422, "invalid", {"queries": [{"image": "no base64!"}]}),
    ("/search", 400, "bad_request", {"queries": [{"image": "aGVsbG8="}]}),
    ("/search", 422, "invalid", {"queries": [FEATURES]}),
    ("/search", 422, "invalid", {"queries": [{**FEATURES, "text": "a"}]}),
    ("/search", 422, "invalid", {"queries": [{"text": "a"}], "k": 101, "parts": True}),
    ("/search", 400, "bad_request", {"queries": [{"text": "a"}], "within": ["nobody"]}),
    ("/search", 400, "bad_request", {"queries": [{"text": "?!"}]}),
    ("/search", 404, "not_found", {"queries": [{"item": "nobody"}]}),
    ("/dense", 422, "invalid", {"queries": [{"text": "a"}], "beam": 3}),
    ("/explain", 404, "not_found", {"query": {"text": "a star"}, "target": "nobody"}),
    ("/explain", 422, "invalid", {"query": {"text": "a star"}, "target": "s0000000-i", "best": 51}),
    ("/items", 403, "forbidden", {"items": [{"id": "a", "text": "b"}]}),
    ("/nowhere", 404, "not_found", {}),
    ("/health", 405, "method_not_allowed", {}),
]


@pytest.mark.parametrize(("place", "status", "code", "body"), REFUSED)
def test_what_cannot_be_answered_is_said_in_a_sentence(
    reading: Running, place: str, status: int, code: str, body: dict[str, Any] | bytes
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = reading.http.post(place, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["code"] == code
    assert error["message"].endswith(".") and "\n" not in error["message"] and "Traceback" not in error["message"]
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_one_bad_query_leaves_those_beside_it_alone(reading: Running, retriever: Retriever) -> None:
    """Texts of several requests are encoded at once; one of them has no word the encoder knows."""
    answers: list[Any] = []
    crew = [
        threading.Thread(
            target=lambda words=words: answers.append(
                (words, reading.http.post("/search", json={"queries": [{"text": words}]}))
            )
        )
        for words in [*WORDS, "?!", "..."] * 4
    ]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    assert {words: answer.status_code for words, answer in answers} == {
        **dict.fromkeys(WORDS, 200),
        "?!": 400,
        "...": 400,
    }


def test_other_types_of_body_are_refused(reading: Running) -> None:
    for sort in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = reading.http.post("/search", content=b"{}", headers={"content-type": sort})
        assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_media_type")
    broken = reading.http.post("/search", content=b"--x\r\nnothing", headers={"content-type": "multipart/form-data"})
    assert (broken.status_code, broken.json()["error"]["code"]) == (400, "bad_request")
