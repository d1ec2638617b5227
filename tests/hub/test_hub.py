"""A retriever goes to a folder and to a stand-in hub and comes back the same, with a card, and nothing of a machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import siglum
from hub_server import TOKEN, Hub, serve
from siglum.data.fields import read_fields
from siglum.data.source import write_source
from siglum.encode.registry import FORMS
from siglum.hub.card import EXTRAS, TERMS, facts_of, public_name
from siglum.lab.world.collection import World
from siglum.search.retriever import Retriever
from siglum.types import Item, SiglumError

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def retriever(run_copy: Path) -> Retriever:
    """A retriever with changes in memory."""
    found = Retriever.load(run_copy)
    found.add([Item(id="new", text="three green hearts")])
    found.upsert([Item(id="placed", text="a blue ring")])
    return found


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with serve() as found:
        yield found


def ids(retriever: Retriever, text: str = "a red star") -> list[tuple[str, float, str | None]]:
    return [(hit.item_id, hit.score, hit.text) for hit in retriever.search(text, k=20, beam=99)]


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_and_back(retriever: Retriever, tmp_path: Path) -> None:
    folder = tmp_path / "published"
    retriever.save_pretrained(folder)
    again = Retriever.from_pretrained(folder)
    assert ids(again) == ids(retriever) and len(again) == len(retriever)
    assert ids(Retriever.load(folder)) == ids(retriever)
    before = files(folder)
    assert {Path(name).suffix for name in before} == {".json", ".safetensors", ".md"}
    retriever.save_pretrained(folder)
    assert files(folder) == before, "it takes the place of an earlier state"
    assert retriever.index.ids[-1] == "placed" and retriever.search("a red star"), "the retriever is as it was"
    retriever.save_pretrained(str(folder), texts=False)
    bare = Retriever.from_pretrained(folder)
    assert [found[:2] for found in ids(bare)] == [found[:2] for found in ids(retriever)]
    assert {found[2] for found in ids(bare)} == {None}


def test_nothing_of_this_machine_goes_with_it(run_copy: Path, tmp_path: Path, world: World) -> None:
    from PIL import Image

    place = tmp_path / "a secret place"
    place.mkdir()
    drawn = next(item.image for item in world.items("test") if item.image is not None)
    Image.fromarray(drawn.pixels(48)).save(place / "a.png")  # type: ignore[union-attr]
    retriever = Retriever.load(run_copy)
    retriever.add([Item(id="new", text="words", image=place / "a.png")])
    retriever._encoder = f"clip:{place}/my-clip"
    retriever.save_pretrained(tmp_path / "published")
    for name, content in files(tmp_path / "published").items():
        assert b"secret" not in content and str(tmp_path).encode() not in content, name
    again = Retriever.load(tmp_path / "published", encoder="builtin")
    assert {hit.image for hit in again.search("words", k=50, beam=99)} == {None}
    assert "pass your copy of it as `encoder=`" in (tmp_path / "published" / "README.md").read_text()


def test_a_run_is_not_written_over(retriever: Retriever, run_copy: Path, world_run: Path, tmp_path: Path) -> None:
    before = files(run_copy)
    for folder in (run_copy, world_run):
        with pytest.raises(SiglumError, match="holds a run, which would be lost"):
            retriever.save_pretrained(folder)
    assert files(run_copy) == before
    retriever.save_pretrained(tmp_path / "published")
    opened = Retriever.from_pretrained(tmp_path / "published")
    opened.remove([opened.index.ids[0]])
    before = files(tmp_path / "published")
    with pytest.raises(SiglumError, match="where this retriever was opened"):
        opened.save_pretrained(tmp_path / "published")
    assert files(tmp_path / "published") == before, "a kill on the way would have left neither"
    for wrong in ("", 3, None):
        with pytest.raises(SiglumError, match="named by a string"):
            retriever.push_to_hub(wrong)  # type: ignore[arg-type]
        with pytest.raises(SiglumError, match="named by a string or a path"):
            Retriever.from_pretrained(wrong)  # type: ignore[arg-type]
    with pytest.raises(SiglumError, match="is a folder here, which has no revision v1"):
        Retriever.from_pretrained(world_run, revision="v1")


def test_the_card_tells_what_there_is_to_tell(
    retriever: Retriever, run_copy: Path, tmp_path: Path, call: object
) -> None:
    call("eval", run_copy, "--split", "test")  # type: ignore[operator]
    retriever.save_pretrained(tmp_path / "stars")
    card = (tmp_path / "stars" / "README.md").read_text()
    front, body = card.removeprefix("---\n").split("\n---\n", 1)
    known = dict(line.split(": ", 1) for line in front.splitlines())
    assert known["library_name"] == "siglum" and "generative-retrieval" in json.loads(known["tags"])
    assert "# stars" in body and f"| Items | {len(retriever):,} |" in body and "| Encoder | `builtin` |" in body
    assert "| Recipe | pro, scale tiny, seed 0 |" in body
    assert re.search(r"\| t→i \| \d+\.\d / \d+\.\d / \d+\.\d \|", body) and "split test" in body
    assert "| | dense | scan | geometry | pro |" in body
    assert "Apache-2.0" in body and "holds the texts of" in body
    (code,) = re.findall(r"```python\n(.*?)```", body, re.S)
    exec(compile(code.replace('"stars"', repr(str(tmp_path / "stars"))), "card", "exec"), {})


def test_what_was_written_on_a_card_stays(retriever: Retriever, tmp_path: Path) -> None:
    retriever.save_pretrained(tmp_path / "one")
    card = tmp_path / "one" / "README.md"
    card.write_text(card.read_text() + "\nMade by us.\n")
    again = Retriever.from_pretrained(tmp_path / "one")
    again.save_pretrained(tmp_path / "two")
    assert (tmp_path / "two" / "README.md").read_text().endswith("Made by us.\n")


@pytest.mark.parametrize("published", [True, False])
def test_a_readme_that_is_there_stays(
    retriever: Retriever, tmp_path: Path, caplog: pytest.LogCaptureFixture, published: bool
) -> None:
    if published:
        retriever.save_pretrained(tmp_path)
    assert not caplog.text
    (tmp_path / "README.md").write_text("Our project.\n")
    retriever.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "Our project.\n"
    assert "README.md is left as it is" in caplog.text


def test_a_retriever_of_arrays_asks_for_an_encoder(tmp_path: Path, make_vectors: object) -> None:
    from conftest import QUICK
    from siglum.run.stages import train_all

    vectors = make_vectors()  # type: ignore[operator]
    models, index = train_all(vectors, QUICK)
    Retriever(index=index, encoder="none", **models).save_pretrained(tmp_path / "mine")
    card = (tmp_path / "mine" / "README.md").read_text()
    assert "encoder=my_encoder" in card and "Terms of the features" in card and "Not recorded" in card


def test_every_encoder_has_its_terms() -> None:
    page = (ROOT / "docs" / "assets.md").read_text()
    kinds = {form.partition(":")[0] for form in FORMS} - {"none", "auto", "offline"}
    assert set(TERMS) == kinds
    for kind in kinds - {"builtin"}:
        named = rf"\|[^|]*\|[^|]*encoders? [^|]*`{kind.removesuffix('-torch')}`"
        licence = re.search(r"Apache-2.0|MIT|own licence", TERMS[kind])
        rows = [line for line in page.splitlines() if re.match(named, line)]
        assert licence and any(licence[0] in row for row in rows), kind


def test_the_card_installs_what_its_encoder_needs(retriever: Retriever) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS) == set(TERMS) - {"builtin"} and set(EXTRAS.values()) <= set(extras)
    counts = {"items": 3, "texts": 0, "parameters": 0}
    for encoder, needed in (
        ("builtin", []),
        ("none", []),
        ("minilm+efficientnet-lite2", ["offline"]),
        ("sentence:intfloat/e5-small+clip:ViT-L/14", ["sentence", "transformers"]),
    ):
        assert facts_of(None, retriever.tokenizer, retriever.config, encoder, counts).extras == needed


def card_of(retriever: Retriever, folder: Path, **options: bool) -> str:
    retriever.save_pretrained(folder, **options)
    return (folder / "README.md").read_text()


def test_the_card_asks_for_what_is_there(retriever: Retriever, run_copy: Path, tmp_path: Path) -> None:
    def asked(card: str) -> str:
        (query,) = re.findall(r"retriever\.search\((.*), k=5\)", card)
        return str(query)

    own = json.loads(asked(card_of(retriever, tmp_path / "own")))
    texts = [text for kept in retriever.index.fields if (text := read_fields(kept)[0])]
    assert own in texts and len(own) <= 80 < max(map(len, texts))
    assert asked(card_of(retriever, tmp_path / "bare", texts=False)) == '"what you look for"'
    retriever.upsert([Item(id=name, text='a "red"\n☂️ 🐕 star ' * 20) for name in retriever.index.ids])
    again = asked(card_of(retriever, tmp_path / "long"))
    assert eval(again).startswith('a "red" ☂️ 🐕 star a "red"') and 60 < len(eval(again)) <= 80
    write_source(run_copy, "folder", path="/photos", supervised=False, joint=False)
    card = card_of(Retriever.load(run_copy), tmp_path / "pictures")
    assert asked(card) == 'image="photo.jpg"' and "from a query of picture." in card.replace("\n", " ")


def test_the_card_calls_what_it_learnt_from_by_its_name(run_copy: Path, tmp_path: Path) -> None:
    for place, (kind, facts, told) in enumerate(
        [
            ("folder", {"learnt": 300}, "Pictures of a folder, `shop`, and 300 captions."),
            ("folder", {"learnt": 3000, "queries": "queries"}, "Products of a catalogue, `shop`, and 3,000 queries."),
            ("catalogue", {"seed": 0}, "A product catalogue, `shop`: photographs, names and both together"),
        ]
    ):
        write_source(run_copy, kind, path="/somewhere/shop", **facts)
        card = card_of(Retriever.load(run_copy), tmp_path / str(place))
        assert told in card and "somewhere" not in card


@pytest.mark.parametrize(
    ("name", "public"),
    [
        ("builtin", "builtin"),
        ("minilm+efficientnet-lite2", "minilm+efficientnet-lite2"),
        ("clip:ViT-L/14", "clip:ViT-L/14"),
        ("sentence:intfloat/e5-small", "sentence:intfloat/e5-small"),
        ("clip:/home/me/my-clip", "clip:my-clip"),
        ("openclip:ViT-B-32//home/me/w.pt", "openclip:ViT-B-32/w.pt"),
        ("sentence:/a b/c+clip:/d/e", "sentence:c+clip:e"),
        ("llm2clip:/a/clip+/b/llm", "llm2clip:clip+llm"),
    ],
)
def test_names_of_encoders_without_places(name: str, public: str) -> None:
    assert public_name(name) == public


PUSH = """
import sys, siglum
folder, name, options = sys.argv[1], sys.argv[2], eval(sys.argv[3])
print(siglum.Retriever.load(folder).push_to_hub(name, **options))
"""
PULL = """
import sys, siglum
name, options = sys.argv[1], eval(sys.argv[2])
retriever = siglum.Retriever.from_pretrained(name, **options)
print([(hit.item_id, hit.score, hit.text) for hit in retriever.search("a red star", k=20, beam=99)])
"""


def script(hub_url: str, cache: Path, code: str, *args: object) -> subprocess.CompletedProcess[str]:
    """Run a program of its own, since huggingface_hub reads its settings when it is imported."""
    own = {"HF_ENDPOINT": hub_url, "HF_HOME": str(cache), "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1"}
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        env={**os.environ, **own, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=200,
    )


def test_to_the_hub_and_back(retriever: Retriever, hub: Hub, tmp_path: Path) -> None:
    run = tmp_path / "mine"
    retriever.save(run)
    options = {"token": TOKEN, "private": True}
    done = script(hub.url, tmp_path / "cache", PUSH, run, "us/stars", options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{hub.url}/us/stars" and done.stderr == "", "it draws no bars unasked"
    held = hub.files("us/stars")
    retriever.save_pretrained(tmp_path / "folder")
    local = files(tmp_path / "folder")
    assert set(held) == set(local) and all(held[name] == local[name] for name in set(held) - {"README.md"})
    assert hub.private["us/stars"] and b'from_pretrained("us/stars")' in held["README.md"]
    pulled = script(hub.url, tmp_path / "cache", PULL, "us/stars", {})
    assert pulled.returncode == 0, pulled.stderr
    assert pulled.stdout.strip() == str(ids(retriever)) and pulled.stderr == ""
    asked = len(hub.asked)
    again = script(hub.url, tmp_path / "cache", PULL, "us/stars", {"revision": hub.branches["us/stars"]["main"]})
    assert again.stdout == pulled.stdout
    assert not [path for verb, path in hub.asked[asked:] if "resolve" in path and verb == "GET"], "all is in the cache"


def test_what_lies_on_the_hub_is_checked(retriever: Retriever, hub: Hub, tmp_path: Path) -> None:
    retriever.save_pretrained(tmp_path / "folder")
    held = files(tmp_path / "folder") | {"evil.pkl": b"cos\nsystem\n", "4-index/x.bin": b"1"}
    damaged = bytearray(held["3-decoder/decoder.safetensors"])
    damaged[-1] ^= 1
    hub.commit("us/bad", "main", {**held, "3-decoder/decoder.safetensors": bytes(damaged)})
    done = script(hub.url, tmp_path / "cache", PULL, "us/bad", {})
    assert done.returncode and "decoder.safetensors is not the file that was written" in done.stderr.splitlines()[-1]
    assert not list((tmp_path / "cache").rglob("*.pkl")) and not list((tmp_path / "cache").rglob("*.bin"))


@pytest.mark.parametrize(
    ("code", "args", "told"),
    [
        (PULL, ("us/nothing", {}), "us/nothing is no folder here, and could not be had from the hub"),
        (PULL, ("not a name", {}), "not a name is no folder here, and could not be had from the hub"),
        (PUSH, ("RUN", "us/other", {"token": "hf_wrong"}), "'us/other' could not be written on the hub"),
    ],
    ids=["unknown", "no name", "wrong token"],
)
def test_what_goes_wrong_is_told_in_one_sentence(
    hub: Hub, world_run: Path, tmp_path: Path, code: str, args: tuple[object, ...], told: str
) -> None:
    done = script(hub.url, tmp_path / "cache", code, *(world_run if arg == "RUN" else arg for arg in args))
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and last.startswith("siglum.types.SiglumError: ") and told in last
    assert last.endswith("check the name, the network and the token.")


def test_without_a_network_it_is_told_too(world_run: Path, tmp_path: Path) -> None:
    with serve() as gone:
        url = gone.url
    done = script(url, tmp_path / "cache", PULL, "us/stars", {})
    assert "could not be had from the hub" in done.stderr.splitlines()[-1]


def test_a_branch_may_be_written(retriever: Retriever, hub: Hub, tmp_path: Path) -> None:
    retriever.save(tmp_path / "mine")
    hub.commit("us/old", "main", {"old.json": b"{}", "notes.txt": b"kept"})
    done = script(hub.url, tmp_path / "c", PUSH, tmp_path / "mine", "us/old", {"token": TOKEN, "revision": "v1"})
    assert done.returncode == 0, done.stderr
    assert set(hub.files("us/old")) == {"old.json", "notes.txt"}
    assert {"config.json", "notes.txt"} < set(hub.files("us/old", "v1")) and "old.json" not in hub.files("us/old", "v1")
    pulled = script(hub.url, tmp_path / "c", PULL, "us/old", {"revision": "v1"})
    assert pulled.stdout.strip() == str(ids(retriever)), pulled.stderr


def test_facts_need_no_run(retriever: Retriever) -> None:
    counts = {"items": 3, "texts": 0, "parameters": 0}
    facts = facts_of(None, retriever.tokenizer, retriever.config, "clip:openai/clip-vit-base-patch32", counts)
    assert facts.base_model == "openai/clip-vit-base-patch32" and "MIT" in facts.terms and not facts.table
    assert siglum.Retriever is Retriever
