"""A folder of photographs to a search engine in one command, with captions and without."""

from __future__ import annotations

import json
import shutil
import webbrowser
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
from PIL import Image

from markup import all_said, parse, said
from siglum import build
from siglum.console.commands import call as call_verb
from siglum.data.source import write_source
from siglum.data.vectors import load_vectors
from siglum.encode.builtin import BuiltinEncoder
from siglum.files import read_json
from siglum.fuse.store import load_fusion
from siglum.lab.world.collection import World
from siglum.recipes import recipe
from siglum.run import stages
from siglum.search import models, retriever
from siglum.types import Features, Vectors

PHOTOS = 16
STAGES = ("1-vectors", "2-tokenizer", "3-decoder", "4-index")
TINY = ["--encoder", "builtin", "--scale", "tiny", "--set", "tokenizer.vocab=[2,4,8]", "--set", "decoder.epochs=2"]
Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Run a verb and return its exit code, stdout and stderr."""

    def run(verb: str, *args: object) -> tuple[int, str, str]:
        capsys.readouterr()
        module = import_module(f"siglum.cli.{verb}")
        code = call_verb(module.Command, module.run, verb, [str(arg) for arg in args])
        return code, *capsys.readouterr()

    return run


def draw(folder: Path, captions: bool, number: int = PHOTOS) -> Path:
    """Write pictures of the drawn world, every other in a folder with a space in its name, perhaps with captions."""
    world = World(480, 0)
    scenes = [item for item in world.items("train") if item.image is not None and item.text is not None]
    for place, item in enumerate(scenes[:number]):
        path = folder / ("" if place % 2 else "old ones") / f"{item.id}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(item.image.pixels(48)).save(path)
        if captions:
            path.with_suffix(".txt").write_text(f"{item.text}\nscene number {place}\n")
    return folder


def build_run(folder: Path, captions: bool) -> tuple[Path, Path]:
    photos, run = draw(folder / "photos", captions), folder / "run"
    module = import_module("siglum.cli.build")
    assert call_verb(module.Command, module.run, "build", [str(photos), "--out", str(run), *TINY]) == 0
    return photos, run


@pytest.fixture(scope="module")
def captioned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Photographs with captions and the run made of them; read them, never write."""
    return build_run(tmp_path_factory.mktemp("captioned"), True)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Photographs without captions and the run made of them; read them, never write."""
    return build_run(tmp_path_factory.mktemp("plain"), False)


def refuse(say: Say, *args: object) -> str:
    code, out, error = say("build", *args)
    assert (code, out) == (1, "")
    *_, last = error.strip().splitlines()
    assert last.startswith("siglum build: ") and last.endswith(".")
    return last


def test_captions_make_a_search_engine(captioned: tuple[Path, Path], say: Say) -> None:
    photos, run = captioned
    source = read_json(run / "source.json")
    assert (source["path"], source["supervised"], source["joint"]) == (str(photos), True, False)
    assert all((run / stage / "stage.json").exists() for stage in STAGES)
    assert read_json(run / "config.json")["fusion"]["kind"] == "combiner"
    code, out, _ = say("search", run, "scene number 3", "-k", 5)
    assert code == 0
    lines = [line.split(maxsplit=4) for line in out.splitlines()]
    assert [line[0] for line in lines] == ["1", "2", "3", "4", "5"]
    assert all(0 <= int(line[1]) <= 100 and line[2] == "%" for line in lines)
    assert all(Path(line[4]).is_file() for line in lines)
    hits = json.loads(say("search", run, "scene number 3", "-k", 99, "--beam", 99, "--json")[1])["hits"]
    assert sorted(hit["path"] for hit in hits) == sorted(map(str, photos.rglob("*.png")))
    assert any("%20" in hit["item_id"] for hit in hits)
    code, out, error = say("eval", run, "--split", "val")
    assert code == 0, error


def test_the_summary_says_what_came_of_it(captioned: tuple[Path, Path], tmp_path: Path, say: Say) -> None:
    photos, run = Path(shutil.copytree(captioned[0], tmp_path / "photos")), tmp_path / "run"
    (photos / "broken.jpg").write_bytes(b"no picture")
    (photos / "broken.txt").write_text("what nobody can see")
    assert "broken.jpg" in refuse(say, photos, "--out", run, *TINY, "--strict")
    code, out, error = say("build", photos, "--out", run, *TINY, "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["items"], found["captions"], found["skipped"]) == (PHOTOS, 2 * PHOTOS, ["broken.jpg"])
    assert found["about"] == "33 captions from sidecar files for 17 pictures"
    assert set(found["seconds"]) == {"encode", "tokenize", "train", "index", "weigh"}
    assert f"16 pictures and 32 captions, encoded by builtin, are searchable in {run}" in error
    why = f"the picture {photos / 'broken.jpg'} cannot be read (of no known kind, or damaged)."
    assert found["reasons"] == {"broken.jpg": why}
    assert f"1 picture was skipped:\n  {why}\n" in error
    held_out = found["held_out"]
    shares = [held_out[f"success@{depth}"] for depth in (1, 5, 10)]
    tried = len(load_vectors(run / "1-vectors")[0].first_pairs("val")[0])
    assert held_out["captions"] == tried > 0 and 0 <= shares[0] <= shares[1] <= shares[2] <= 1
    quality = f"find theirs first in {100 * shares[0]:.0f} %, among the first 10 of 16 in {100 * shares[2]:.0f} %"
    assert f"quality: {tried} captions of pictures it never read about {quality}\n" in error
    assert read_json(run / "source.json")["held_out"] == held_out
    assert f'next: siglum search {run} "two dogs in the snow" --open' in error


def test_without_captions_pictures_find_pictures(plain: tuple[Path, Path], say: Say) -> None:
    photos, run = plain
    vectors, _ = load_vectors(run / "1-vectors")
    assert (len(vectors.items), len(vectors.pair_query)) == (PHOTOS, PHOTOS)
    own = vectors.queries.rows(vectors.pair_query)
    assert list(own.ids) == [vectors.items.ids[row] for row in vectors.pair_item]
    assert np.array_equal(own.image, vectors.items.image) and not own.has_text.any()
    config = read_json(run / "config.json")
    assert (config["fusion"]["kind"], config["fusion"]["epochs"]) == ("sum", 0)
    assert not config["tokenizer"]["train_fusion"]
    assert config["search"]["omega"] == 16 * recipe("pro", "tiny").search.omega
    wanted = sorted(photos.rglob("*.png"))[0]
    hits = json.loads(say("search", run, "--image", wanted, "--json", "-k", 3, "--scorer", "geometry")[1])["hits"]
    assert hits[0]["path"] == str(wanted)
    for args in (["a red star"], ["a red star", "--image", wanted]):
        code, out, error = say("search", run, *args)
        assert (code, out) == (1, "")
        assert "built without captions" in error and "ask by a picture alone" in error
    _, _, error = say("build", photos, "--out", run, *TINY, "--resume")
    assert "finds pictures by pictures only, not by words" in error
    example = sorted(photos.glob("*.png"))[0]
    assert f"next: siglum search {run} --image {example} --open" in error
    assert "quality" not in error and read_json(run / "source.json")["held_out"] == {}


def test_pictures_are_encoded_once(tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    encode = BuiltinEncoder.encode_images

    def counted(self: BuiltinEncoder, pictures: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
        seen.append(len(pictures))
        return encode(self, pictures)

    monkeypatch.setattr(BuiltinEncoder, "encode_images", counted)
    monkeypatch.setattr(build, "make_tokenizer", lambda *args, **options: stop())
    photos = draw(tmp_path / "photos", captions=False)
    assert say("build", photos, "--out", tmp_path / "run", *TINY)[0] == 130
    assert sum(seen) == PHOTOS


def stop() -> None:
    raise KeyboardInterrupt


def test_a_killed_build_goes_on_where_it_stopped(
    captioned: tuple[Path, Path], tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos, whole = captioned
    run, made = tmp_path / "run", []
    for stage, module in (
        ("make_vectors", build),
        ("make_tokenizer", build),
        ("make_decoder", stages),
        ("make_index", stages),
    ):
        work = getattr(module, stage)

        def watched(*args: Any, stage: str = stage, work: Any = work, **options: Any) -> Any:
            made.append(stage)
            if stage == "make_decoder" and made.count(stage) == 1:
                raise KeyboardInterrupt
            return work(*args, **options)

        monkeypatch.setattr(module, stage, watched)
    code, _, error = say("build", photos, "--out", run, *TINY)
    assert code == 130 and "--resume goes on where it stopped" in error
    assert "start without --resume" in refuse(say, photos, "--out", run, *TINY, "--resume", "--encoder", "offline")
    found = json.loads(say("build", photos, "--out", run, *TINY, "--resume", "--json")[1])
    assert set(found["seconds"]) == {"train", "index", "weigh"}
    assert made == ["make_vectors", "make_tokenizer", "make_decoder", "make_decoder", "make_index"]
    for name in ("index.safetensors", "ids.safetensors"):
        assert (run / "4-index" / name).read_bytes() == (whole / "4-index" / name).read_bytes()
    code, out, error = say("build", photos, "--out", run, *TINY, "--resume", "--json")
    assert json.loads(out)["seconds"] == {} and "nothing was made again" in error
    assert len(made) == 5


def test_a_build_is_never_taken_for_another(
    captioned: tuple[Path, Path], plain: tuple[Path, Path], tmp_path: Path, say: Say
) -> None:
    photos, run = Path(shutil.copytree(captioned[0], tmp_path / "photos")), tmp_path / "run"
    assert f"holds the run of {captioned[0]}, not of {plain[0]}" in refuse(say, plain[0], "--out", captioned[1], *TINY)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    assert "holds something else" in refuse(say, photos, "--out", tmp_path / "full", *TINY)
    shutil.copytree(captioned[1], run)
    write_source(run, **{**read_json(run / "source.json"), "path": str(photos)})
    (photos / "new.png").write_bytes(next(photos.glob("*.png")).read_bytes())
    assert f"pictures or captions of {photos} changed since" in refuse(say, photos, "--out", run, *TINY, "--resume")
    assert (run / "4-index" / "stage.json").exists()


def test_a_changed_folder_is_built_anew(captioned: tuple[Path, Path], tmp_path: Path, say: Say) -> None:
    photos, run = Path(shutil.copytree(captioned[0], tmp_path / "photos")), tmp_path / "run"
    assert say("build", photos, "--out", run, *TINY)[0] == 0
    next(photos.glob("*.png")).unlink()
    found = json.loads(say("build", photos, "--out", run, *TINY, "--json")[1])
    assert found["items"] == PHOTOS - 1
    assert set(found["seconds"]) == {"encode", "tokenize", "train", "index", "weigh"}
    assert len(json.loads(say("search", run, "scene", "-k", 99, "--beam", 99, "--json")[1])["hits"]) == PHOTOS - 1


def test_settings_cannot_change_on_the_way(captioned: tuple[Path, Path], say: Say) -> None:
    photos, run = captioned
    for setting, value in (("decoder.dropout", 0.3), ("search.omega", 7.0)):
        message = refuse(say, photos, "--out", run, *TINY, "--set", f"{setting}={value}", "--resume")
        assert f"was made with {setting}" in message and f"not {value}; start without --resume" in message


def test_codes_are_no_more_than_pictures_to_learn_from() -> None:
    nothing, rows = np.zeros((40, 0), np.float16), np.arange(40)
    pictures = Features([str(row) for row in rows], np.zeros((40, 4), np.float16), nothing, rows >= 0, rows < 0)
    vectors = Vectors(pictures, pictures, rows, rows % 9, [])
    config = build.configure(vectors, True, False, "pro", "auto", 0)
    assert max(config.tokenizer.vocab) == 8


def test_too_few_pictures(tmp_path: Path, say: Say) -> None:
    few = draw(tmp_path / "few", captions=False, number=7)
    assert "there are 7 pictures to learn from, but a search needs at least 8" in refuse(
        say, few, "--out", tmp_path / "r"
    )
    assert not (tmp_path / "r").exists()
    half = draw(tmp_path / "half", captions=False)
    next(half.glob("*.png")).with_suffix(".txt").write_text("one caption")
    message = refuse(say, half, "--out", tmp_path / "half-run", *TINY)
    assert "captioned pictures to learn from" in message and "--captions none" in message
    for path in list(half.rglob("*.png"))[7:]:
        path.write_bytes(b"no picture")
    message = refuse(say, half, "--out", tmp_path / "torn-run", *TINY, "--captions", "none")
    assert "there are 7 readable pictures to learn from" in message
    assert "makes no features of pictures" in refuse(say, half, "--out", tmp_path / "none-run", "--encoder", "none")


def test_hits_are_shown_in_the_browser(
    captioned: tuple[Path, Path], tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(captioned[1], tmp_path / "run"))
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    _, out, error = say("search", run, "scene number 3", "-k", 4, "--open")
    page = run / "6-report" / "hits.html"
    assert opened == [page.as_uri()] and f"hits: {page}" in error and len(out.splitlines()) == 4
    sheet = parse(page.read_text())
    assert "“scene number 3”" in said(sheet) and "16 items searched" in said(sheet) and "%20" not in said(sheet)
    assert len(list(sheet.iter("img"))) == len(list(filter(None, all_said(sheet, "p", "caption")))) == 4
    files = [(page.parent / unquote(link.attrib["href"])).resolve() for link in sheet.iter("a")]
    assert len(files) == 8 and all(file.is_file() for file in files)
    assert all(score.endswith(" %") for score in all_said(sheet, "span", "score"))
    picture = next(captioned[0].glob("*.png"))
    say("search", run, "--image", picture, "-k", 2, "--sheet", tmp_path / "mail" / "me.html")
    assert len(opened) == 1
    assert (tmp_path / "mail" / "me.html").read_text().count("data:image/jpeg;base64,") == 3

    def none(url: str) -> bool:
        raise webbrowser.Error("could not locate runnable browser")

    monkeypatch.setattr(webbrowser, "open", none)
    code, _, error = say("search", run, "scene", "--open")
    assert code == 0 and "no browser could be opened" in error


def test_what_a_search_cannot_give_is_said(captioned: tuple[Path, Path], tmp_path: Path, say: Say) -> None:
    photos, run = Path(shutil.copytree(captioned[0], tmp_path / "photos")), tmp_path / "run"
    shutil.copytree(captioned[1], run)
    write_source(run, **{**read_json(run / "source.json"), "path": str(photos)})
    code, out, error = say("search", run, "scene", "-k", 9, "--beam", 3)
    assert code == 0 and f"{len(out.splitlines())} of the 9 hits asked for: a beam of 3 reaches no more" in error
    assert say("search", run, "scene", "-k", 3)[2] == ""
    assert say("search", run, "scene", "-k", 99, "--beam", 99)[2] == ""
    next(photos.glob("*.png")).unlink()
    hits = json.loads(say("search", run, "scene", "-k", 99, "--beam", 99, "--json")[1])["hits"]
    assert len(hits) == PHOTOS and sum("path" in hit for hit in hits) == PHOTOS - 1
    assert all(Path(hit["path"]).is_file() for hit in hits if "path" in hit)


class ColourEncoder(BuiltinEncoder):
    """A joint encoder for flat colours: `200 30 40` lies where a picture of that colour lies, but for a wide gap."""

    name, joint, text_dim, image_dim = "colour", True, 8, 8

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        numbers = [[int(word) for word in text.split() if word.isdigit()] or [128] for text in texts]
        return self.place(np.array([(found * 3)[:3] for found in numbers], np.float32), 3)

    def encode_images(self, pictures: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
        return self.place(np.stack([picture.mean((0, 1)) for picture in pictures]), 5)

    def place(self, colours: np.ndarray, corner: int) -> np.ndarray:
        rows = np.zeros((len(colours), 8), np.float32)
        rows[:, :3] = colours / 255 - 0.5
        rows[:, corner] = 2.0
        return rows


def test_a_joint_encoder_finds_pictures_by_words_without_captions(
    tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    colours = [(r, g, b) for r in (20, 128, 235) for g in (20, 235) for b in (20, 128, 235)]
    (tmp_path / "photos").mkdir()
    for r, g, b in colours:
        Image.new("RGB", (32, 24), (r, g, b)).save(tmp_path / "photos" / f"{r}-{g}-{b}.png")
    for module in (build, models):
        monkeypatch.setattr(module, "build_encoder", lambda name, **options: ColourEncoder())
    run, options = tmp_path / "run", ["--scale", "tiny", "--set", "tokenizer.vocab=[4,8,8]"]
    _, _, error = say("build", tmp_path / "photos", "--out", run, *options)
    assert f'siglum search {run} "two dogs' in error
    fusion = load_fusion(run / "2-tokenizer" / "dense")
    assert fusion.image_shift.numpy() == pytest.approx([0, 0, 0, 0, 0, 2, 0, 0], abs=0.02)
    assert fusion.text_shift.numpy() == pytest.approx([0, 0, 0, 2, 0, 0, 0, 0], abs=0.02)
    asked = ["search", run, "a wall of 235 20 128", "--json"]
    for scorer, among in (("geometry", 1), ("fused", 3)):
        hits = json.loads(say(*asked, "--scorer", scorer)[1])["hits"]
        assert "235-20-128.png" in [hit["item_id"] for hit in hits[:among]]


def test_a_joint_encoder_keeps_its_space_where_captions_are_few(
    tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = draw(tmp_path / "photos", captions=True)
    monkeypatch.setattr(build, "build_encoder", lambda name, **options: ColourEncoder())
    for few, kind in ((build.FEW_PAIRS, "sum"), (10, "combiner")):
        monkeypatch.setattr(build, "FEW_PAIRS", few)
        assert say("build", photos, "--out", tmp_path / kind, *TINY)[0] == 0
        assert read_json(tmp_path / kind / "config.json")["fusion"]["kind"] == kind


def test_the_weight_of_distance_is_chosen_on_validation(
    captioned: tuple[Path, Path], tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, asked = recipe("pro", "tiny").search.omega, []
    rank = retriever.Retriever.rank

    def watched(self: retriever.Retriever, query_QD: Any, *, omega: float, **options: Any) -> Any:
        asked.append(omega)
        hits = rank(self, query_QD, omega=omega, **options)
        if omega != 4 * usual:
            for found in hits:
                found.position[:] = -1
        return hits

    monkeypatch.setattr(retriever.Retriever, "rank", watched)
    assert say("build", captioned[0], "--out", tmp_path / "run", *TINY)[0] == 0
    assert asked == [usual * times for times in (1, 2, 4, 8, 16)]
    assert read_json(tmp_path / "run" / "config.json")["search"]["omega"] == 4 * usual
    found = say("build", captioned[0], "--out", tmp_path / "own", *TINY, "--set", "search.omega=7", "--json")[1]
    assert json.loads(found)["held_out"]["success@1"] == 0 and asked[5:] == [7]
    assert read_json(tmp_path / "own" / "config.json")["search"]["omega"] == 7


def test_a_build_sized_to_its_folder_learns_towers(captioned: tuple[Path, Path]) -> None:
    vectors, _ = load_vectors(captioned[1] / "1-vectors")
    config = build.configure(vectors, True, False, "pro", "auto", 3)
    assert (config.fusion.kind, config.seed) == ("towers", 3)
    assert build.configure(vectors, True, False, "pro", "tiny", 3).fusion.kind == "combiner"
    assert build.configure(vectors, False, False, "pro", "auto", 3).fusion.kind == "sum"
