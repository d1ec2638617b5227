"""What docs/extend.md shows works as it stands there: its parts go through a whole run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from siglum.config import QueryConfig
from siglum.console.commands import override
from siglum.data.vectors import load_vectors
from siglum.encode.registry import build_encoder
from siglum.generate.query import fit_query_head
from siglum.registry import ENCODERS, QUANTISERS, SCORERS
from siglum.run.folder import RunFolder
from siglum.search.retriever import Retriever
from siglum.search.static import GraphSearch
from siglum.tokenize.base import Quantiser, build_quantiser
from siglum.types import SiglumError

PAGE = Path(__file__).parent.parent / "docs" / "extend.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
MADE: dict[str, Any] = {"__name__": "extend"}
"""What the page's code defines."""


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    """Run the page's code, and take its parts out again."""
    for block in BLOCKS:
        exec(compile(block, str(PAGE), "exec"), MADE)
    yield
    for parts, name in ((ENCODERS, "letters"), (QUANTISERS, "signs"), (SCORERS, "fading")):
        parts.forget(name)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the page's encoder and quantiser."""
    from siglum.cli.main import main

    run = tmp_path_factory.mktemp("extend") / "run"
    settings = ("tokenizer.kind=signs", "search.scorer=decoder", "decoder.code_init=false", "decoder.epochs=1")
    chosen = [part for setting in settings for part in ("--set", setting)]
    source = ["--world", "240", "--scale", "tiny", "--encoder", "letters"]
    assert main(["encode", "--out", str(run), *source, *chosen]) == 0
    for verb in ("tokenize", "train", "index"):
        assert main([verb, str(run)]) == 0
    return run


def test_examples_are_short_and_one_a_protocol() -> None:
    assert len(BLOCKS) == 4
    assert all(len(block.splitlines()) <= 30 for block in BLOCKS)


def test_an_encoder_of_the_page_is_built_by_its_name() -> None:
    encoder, pair = build_encoder("letters"), build_encoder("builtin+letters:any")
    assert encoder is not None and pair is not None
    assert (encoder.name, pair.name) == ("letters", "builtin+letters")
    with pytest.raises(SiglumError, match=r"llm2clip:FOLDER, letters, or A\+B\."):
        build_encoder("ciphers")


def test_a_run_of_the_page_is_searched_and_evaluated(made: Path, call, fail) -> None:
    assert json.loads(call("search", made, "a red star", "--json"))["hits"]
    result = json.loads(call("eval", made, "--json"))
    assert set(next(iter(result["tasks"].values()))) == {"dense", "pro"}
    assert result["survival"] == [] and len(result["beam_survival"]) == len(result["health"]["levels"])
    assert result["health"]["reconstruction"] is None
    call("eval", made)
    assert call("info", made)
    for scorer in ("fused", "geometry", "oracle"):
        said = fail("search", made, "a red star", "--scorer", scorer)
        assert said.endswith("vectors, and these have none; search with scorer decoder.")
    target = Retriever.load(made).index.ids[0]
    told = json.loads(call("explain", made, "--query", "a red star", "--target", target, "--json"))
    assert set(told["levels"][0]["target"]["parts"]) == {"log_probability"}
    assert fail("diagnose", made).endswith("and those of tokenizer.kind signs have none.")


def test_both_engines_take_codes_without_vectors(made: Path) -> None:
    retriever = Retriever.load(made)
    query = retriever.tokenizer.fusion.image_shift.new_ones(3, retriever.tokenizer.quantizer.dim)
    wanted = retriever.rank(query, k=3, engine="reference")
    for one, other in zip(retriever.rank(query, k=3, engine="fast"), wanted, strict=True):
        assert one.score.tolist() == pytest.approx(other.score.tolist(), abs=1e-4)
    parts = (retriever.decoder, [], retriever.index, retriever.config, 0, "cpu")
    for one, other in zip(GraphSearch(*parts).search(query, k=3), wanted, strict=True):
        assert one.score.tolist() == pytest.approx(other.score.tolist(), abs=1e-4)
    for options in ({"scorer": "fused"}, {"scorer": "fused", "omega": 0.0, "lookahead": True}, {"mode": "scan"}):
        with pytest.raises(SiglumError, match="these have none"):
            retriever.rank(query, **options)


def test_training_says_what_needs_vectors(made: Path, fail) -> None:
    for setting, what in (
        ("decoder.code_init=true", "decoder.code_init (false starts at random)"),
        ("decoder.soft_targets=0.1", "decoder.soft_targets above 0"),
    ):
        said = fail("train", made, "--set", setting)
        assert f"{what} needs codes whose prefixes have vectors" in said
    folder = RunFolder(made)
    with pytest.raises(SiglumError, match=r"a query head \(query.members above 0\) needs codes"):
        fit_query_head(load_vectors(folder.vectors)[0], Retriever.load(made).tokenizer, QueryConfig(members=1))


def test_a_scorer_of_the_page_answers_and_is_explained(world_run: Path, call, fail) -> None:
    retriever = Retriever.load(world_run)
    fading = retriever.search("a red star", k=4, scorer="fading")
    assert [hit.score for hit in fading] != [hit.score for hit in retriever.search("a red star", k=4)]
    with pytest.raises(SiglumError, match="scorer fading"):
        retriever.search("a red star", scorer="fading", engine="fast")
    target = fading[-1].item_id
    found = json.loads(
        call("explain", world_run, "--query", "a red star", "--target", target, "--scorer", "fading", "--json")
    )
    assert {"log_probability", "FadingGeometry"} <= set(found["levels"][0]["target"]["parts"])
    said = fail("search", world_run, "a red star", "--scorer", "fadign")
    assert "must be one of: fused, decoder, geometry, oracle, fading." in said


def test_a_scorer_of_the_page_is_a_rung(run_copy: Path, call) -> None:
    folder = RunFolder(run_copy)
    folder.write_config(override(folder.config(), ("search.scorer=fading",)))
    found = json.loads(call("diagnose", run_copy, "--json"))
    assert found["own"] == found["ladder"][-1]["rung"] == "fading"
    assert "fading" in found["verdict"]


def test_a_kind_of_query_of_the_page_is_answered(world_run: Path) -> None:
    retriever = Retriever.load(world_run)
    histories = [list(retriever.index.ids)[:2], [retriever.index.ids[7]]]
    asked = MADE["ask_for_more"](retriever, histories)
    assert not asked.is_vector and len(asked) == 2
    found = retriever.rank(asked, k=5)
    wanted = retriever.rank(asked.vector, k=5, engine="reference")
    for one, other in zip(found, wanted, strict=True):
        assert one.position.tolist() == other.position.tolist()
        assert one.score.tolist() == pytest.approx(other.score.tolist(), abs=1e-4)
    liked = set(retriever.index.positions(histories[0]).tolist())
    allowed = [name for name in retriever.index.ids if name not in histories[0]]
    assert not liked & set(retriever.rank(asked, k=5, within=allowed)[0].position.tolist())
    with pytest.raises(SiglumError, match="its decoder reads one soft token"):
        retriever.rank(asked, engine="fast")


def test_codes_of_variable_length_are_refused(made: Path) -> None:
    @QUANTISERS.register("words")
    class Words(Quantiser):
        fixed_length = False

    try:
        config = Retriever.load(made).tokenizer.quantizer.config
        with pytest.raises(SiglumError, match="codes of variable length, but an index holds codes of one length only"):
            build_quantiser(type(config)(kind="words"), 8)
    finally:
        QUANTISERS.forget("words")
