"""`siglum bench catalogue` end to end on a small catalogue: eight tasks, prepared features, clusters and refusals."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from catalogue_files import make_catalogue
from siglum.cli.main import main
from siglum.config import RunConfig
from siglum.data.catalogue import read_catalogue
from siglum.data.tasks import TASKS
from siglum.lab.catalogue import prepared
from siglum.lab.catalogue.prepared import read_prepared
from siglum.lab.catalogue.systems import OthersRanker, own_rows, united, without_part
from siglum.lab.experiments import setting as settings
from siglum.lab.experiments import trained
from siglum.lab.experiments.ranks import Ranks
from siglum.lab.experiments.setting import Setting
from siglum.recipes import Space
from siglum.search.beam import Ranking

pytestmark = pytest.mark.long
UNITS = "dense,text_alone,image_alone,genius,pro"


class TinySetting(Setting):
    """The benchmark with settings of no use."""

    def config(self, name: str = "", seed: int = 0, space: Space = "") -> RunConfig:
        config = super().config(name, seed, space)
        model = {"d_model": 16, "d_ff": 16, "d_kv": 8, "heads": 2, "decoder_layers": 1, "batch_size": 256}
        fusion = replace(config.fusion, dim=16, hidden=24, dropout=0.0, input_dropout=0.0, epochs=30, batch_size=256)
        return replace(
            config,
            fusion=fusion,
            tokenizer=replace(
                config.tokenizer, vocab=config.tokenizer.vocab[:4], epochs=1, kmeans_iters=2, top_k=16, batch_size=256
            ),
            decoder=replace(config.decoder, **model, epochs=1),
            search=replace(config.search, beam=10),
        )


@pytest.fixture(autouse=True, scope="module")
def _tiny() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settings, "Setting", TinySetting)
        patch.setattr(prepared, "USUAL", "builtin")
        yield


def bench(data: Path, out: Path, *more: str) -> int:
    return main(["bench", "catalogue", "--data", str(data), "--out", str(out), *more])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("catalogue")
    make_catalogue(folder / "data")
    assert bench(folder / "data", folder / "all.json", "--units", UNITS) == 0
    return folder


def document(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def part(folder: Path, name: str) -> dict[str, Any]:
    found = document(folder / f"all.parts/catalogue/parts/{name}.json")
    del found["seconds"]
    return found


def test_one_command_goes_from_photographs_to_tables_and_figures(finished: Path) -> None:
    found = document(finished / "all.json")
    assert set(found["tasks"]) == set(found["union"]) == set(TASKS)
    for task, systems in found["tasks"].items():
        composed = task.startswith("it2")
        assert set(systems) >= {"dense", "pro", "genius", "sf"}
        assert ({"text_alone", "image_alone"} <= set(systems)) == composed == (task in found["composed"])
        for values in systems.values():
            assert 0 <= values["success@1"]["mean"] <= values["mrr@10"]["mean"] <= values["success@10"]["mean"] <= 1
        for system, values in found["union"][task].items():  # more candidates never help
            assert values["success@1"]["std"] == 0 and system in systems
            if system == "dense":
                assert values["success@10"]["mean"] <= systems["dense"]["success@10"]["mean"]
    assert found["tasks"]["t2t"]["dense"]["success@10"]["mean"] > 0.7  # words of names, hashed
    text = (finished / "all.md").read_text()
    assert "PRO is above GENIUS on" in text and "(i,t)→(i,t)" in text and "Composed queries need both parts" in text
    assert {path.name for path in (finished / "all").glob("*.png")} == {"own.png", "union.png", "gaps.png"}


def test_the_document_says_what_the_tasks_are(finished: Path) -> None:
    about, catalogue = document(finished / "all.json")["about"], read_catalogue(finished / "data")
    for task, found in about.items():
        queries = [query for query in catalogue.collection.queries["test"] if query.task == task]
        pool = catalogue.collection.pools["test", task]
        assert (found["queries"], found["pool"]) == (len(queries), len(pool))
        assert found["chance"] == pytest.approx(np.mean([len(query.positives) for query in queries]) / len(pool))


def test_intervals_draw_groups(finished: Path) -> None:
    catalogue = read_catalogue(finished / "data")
    group_of = {product.id: product.group for product in catalogue.products}
    ranks = Ranks.read([part(finished, "dense-0")])
    for task in ("it2t", "i2i"):
        queries = [query.id for query in catalogue.collection.queries["test"] if query.task == task]
        assert ranks.groups[task] == [group_of[name.split(":")[1]] for name in queries]


def test_prepared_features_give_the_same_numbers_anywhere(finished: Path, tmp_path: Path) -> None:
    (file,) = (finished / "all.parts/data").glob("*.npz")
    shutil.copy(file, tmp_path / "taken.npz")
    assert bench(tmp_path / "taken.npz", tmp_path / "all.json", "--units", "dense,genius", "--no-draw") == 0
    for name in ("dense-0", "genius-0"):
        assert part(tmp_path, name) == part(finished, name)
    assert not (tmp_path / "all").exists()


def test_a_second_run_makes_nothing(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prepared, "encode_parts", None)
    before = (finished / "all.json").read_bytes()
    capsys.readouterr()
    assert bench(finished / "data", finished / "all.json", "--units", UNITS, "--no-draw") == 0
    assert "5 of 5 units are there already" in capsys.readouterr().err
    assert (finished / "all.json").read_bytes() == before


def test_rows_of_faiss_come_later_without_another_training(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("faiss")
    shutil.copytree(finished / "all.parts", tmp_path / "all.parts")
    monkeypatch.setattr(trained, "fit_fusion", None)
    names = ("faiss_pq", "faiss_opq", "faiss_rq")
    assert bench(finished / "data", tmp_path / "all.json", "--units", ",".join((UNITS, *names)), "--no-draw") == 0
    before, found = document(finished / "all.json"), document(tmp_path / "all.json")
    assert not found["missing"]
    for task, systems in found["tasks"].items():
        assert {name: values for name, values in systems.items() if name not in names} == before["tasks"][task]
        for name in names:
            assert 0 < systems[name]["mrr@10"]["mean"] <= 1 and name in found["union"][task]
            assert 1 <= found["bytes_per_item"][name] < found["bytes_per_item"]["dense"]
    assert "faiss residual quantiser, exhaustive" in (tmp_path / "all.md").read_text()


def test_encoding_alone_says_where_the_features_are(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert bench(finished / "data", finished / "all.json", "--encode-only", "--json") == 0
    file = Path(json.loads(capsys.readouterr().out)["prepared"])
    catalogue, vectors, omitted = read_prepared(file)
    assert len(vectors.items) == len(catalogue.items()) and not omitted
    assert all(task.clusters is not None for task in vectors.tasks)


def test_a_part_alone_is_taken_from_composed_queries_only(finished: Path) -> None:
    (file,) = (finished / "all.parts/data").glob("*.npz")
    _, vectors, _ = read_prepared(file)
    queries = without_part(vectors, "image").queries
    composed = np.array([name.startswith("it2") for name in queries.ids])
    assert not queries.has_image[composed].any() and not queries.image[composed].any()
    assert (queries.has_image[~composed] == vectors.queries.has_image[~composed]).all()
    assert (queries.has_text == vectors.queries.has_text).all()
    sizes = {len(task.pool_rows) for task in united(vectors).tasks}
    own = {frozenset(task.pool_rows.tolist()) for task in vectors.of_split("test")}
    assert sizes == {sum(map(len, own))}


def test_among_all_pools_no_query_finds_itself(finished: Path) -> None:
    (file,) = (finished / "all.parts/data").glob("*.npz")
    catalogue, vectors, _ = read_prepared(file)
    own, everything = own_rows(vectors), {item.id: item for item in catalogue.items()}
    queries = {query.id: query for query in catalogue.collection.queries["test"]}

    class First:
        """Finds all items that hold the query's own words or picture first."""

        def rank(self, query_rows: np.ndarray, pool_rows: np.ndarray, k: int) -> list[Ranking]:
            found = [sorted(pool_rows, key=lambda row, asked=asked: not holds(asked, row)) for asked in query_rows]
            return [Ranking(*(np.array(rows[:k]),) * 3) for rows in found]

    def holds(asked: int, row: int) -> bool:
        query, item = queries[vectors.queries.ids[asked]], everything[vectors.items.ids[row]]
        same_name = query.image is None and (query.text or "").lower() == (item.text or "").lower()
        return same_name or (query.text is None and query.image is not None and query.image == item.image)

    seen = 0
    for task in united(vectors).of_split("test"):
        plain = First().rank(task.query_rows, task.pool_rows, 4)
        others = OthersRanker(First(), own).rank(task.query_rows, task.pool_rows, 4)
        for asked, before, after in zip(task.query_rows, plain, others, strict=True):
            seen += sum(holds(asked, row) for row in before.position)
            assert not [row for row in after.position if holds(asked, row)], vectors.queries.ids[asked]
            assert len(after) == 4
        own_pool = next(one for one in vectors.of_split("test") if one.name == task.name)
        lost = [np.isin(own.get(int(row), []), own_pool.pool_rows).any() for row in own_pool.query_rows]
        assert not any(lost), "in its own pool nothing is left out"
    assert seen > 10


def test_wrong_requests_are_refused(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (file,) = (finished / "all.parts/data").glob("*.npz")
    (tmp_path / "cut.npz").write_bytes(file.read_bytes()[:2000])
    for data, more, message in (
        (tmp_path, (), "must be a folder with products.jsonl or a prepared file"),
        (tmp_path / "none.npz", (), "must be a folder with products.jsonl or a prepared file"),
        (tmp_path / "cut.npz", (), "is no whole file of a prepared catalogue"),
        (file, ("--encoder", "builtin"), "is encoded already"),
        (finished / "data", ("--encoder", "minilm"), "does not make features of both"),
        (finished / "data", ("--units", "bleak"), "unit is 'bleak', but must be one of: dense, dense_moved"),
        (finished / "data", ("--scale", "captions"), "scale is 'captions', but must be one of: catalogue, "),
    ):
        capsys.readouterr()
        assert bench(data, tmp_path / "out.json", *more) == 1
        assert message in capsys.readouterr().err


def test_a_file_of_other_wordings_is_refused(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from siglum.data import catalogue_words
    from siglum.types import SiglumError

    (file,) = (finished / "all.parts/data").glob("*.npz")
    monkeypatch.setattr(catalogue_words, "CHANGES", ("now in {}",))
    with pytest.raises(SiglumError, match=r"lacks \d+ texts, such as .*; prepare it again"):
        read_prepared(file)


def test_a_kill_while_encoding_loses_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from siglum.encode import run as encoding

    folder, out = make_catalogue(tmp_path / "data"), tmp_path / "features.npz"
    monkeypatch.setattr(encoding, "SHARD", 64)
    write, left = encoding.write_tensors, [3]

    def dies(*args: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        write(*args)

    with monkeypatch.context() as patch:
        patch.setattr(encoding, "write_tensors", dies)
        with pytest.raises(KeyboardInterrupt):
            prepared.prepare(folder, out, "builtin")
    assert len(list(out.with_suffix(".shards").glob("*.safetensors"))) == 3 and not out.exists()
    prepared.prepare(folder, out, "builtin")
    prepared.prepare(folder, tmp_path / "other.npz", "builtin")
    assert out.read_bytes() == (tmp_path / "other.npz").read_bytes()
    assert not out.with_suffix(".shards").exists()
