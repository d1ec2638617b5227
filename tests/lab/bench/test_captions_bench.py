"""`siglum bench captions` end to end on a tiny collection: all units, resuming, parallel work and refusals."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from caption_files import make_captions
from siglum.cli.main import main
from siglum.config import RunConfig
from siglum.lab import units
from siglum.lab.captions import quantisers
from siglum.lab.captions import systems as captions
from siglum.lab.captions.dense import with_dense
from siglum.lab.captions.systems import UNITS, Captions
from siglum.lab.experiments import setting as settings
from siglum.lab.experiments import trained as training
from siglum.lab.experiments.base import Unit
from siglum.lab.experiments.ranks import OMEGAS, PRIORS
from siglum.lab.experiments.setting import Setting
from siglum.recipes import Space

SPLITS = ["train"] * 36 + ["val"] * 12 + ["test"] * 12
FITS = ("fit_fusion", "fit_tokenizer", "fit_query_head", "fit_decoder", "reconstruct")
"""What trains, by its name where it is called."""


class TinySetting(Setting):
    """The benchmark with settings of no use; a class of this module, so that other processes find it too."""

    decoder_epochs: ClassVar[int] = 1

    def config(self, name: str = "", seed: int = 0, space: Space = "") -> RunConfig:
        config = super().config(name, seed, space)
        model = {"d_model": 16, "d_ff": 16, "d_kv": 8, "heads": 2, "decoder_layers": 1, "batch_size": 64}
        return replace(
            config,
            fusion=replace(config.fusion, dim=8, hidden=24, dropout=0.0, input_dropout=0.0, epochs=20),
            tokenizer=replace(
                config.tokenizer,
                vocab=config.tokenizer.vocab[:8],
                epochs=6 if space else 1,
                lr=5e-3,
                kmeans_iters=2,
                top_k=16,
            ),
            query=replace(config.query, hidden=16, epochs=1),
            decoder=replace(config.decoder, **model, epochs=self.decoder_epochs),
            search=replace(config.search, beam=20),
        )


@dataclass
class Work:
    """A collection and where the document of its benchmark goes."""

    data: Path
    out: Path

    def __call__(self, *more: object) -> int:
        return main([str(arg) for arg in ("bench", "captions", "--data", self.data, "--out", self.out, *more)])

    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out.read_text())
        return found

    def part(self, name: str) -> dict[str, Any]:
        """What a unit found, without the time it took."""
        found = json.loads(self.path(name).read_text())
        del found["seconds"]
        return dict(found)

    def path(self, name: str) -> Path:
        """Where a unit's part is."""
        return self.out.with_suffix(".parts") / "captions" / "parts" / f"{name}.json"


@pytest.fixture(autouse=True, scope="module")
def _tiny() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settings, "Setting", TinySetting)
        patch.setattr(captions, "DIMS", (6, 8))
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Work:
    folder = tmp_path_factory.mktemp("bench")
    work = Work(make_captions(folder / "data", SPLITS, [3] * len(SPLITS)), folder / "all.json")
    assert work() == 0
    return work


@pytest.fixture
def copied(finished: Work, tmp_path: Path) -> Work:
    shutil.copytree(finished.out.parent, tmp_path / "bench")
    return Work(tmp_path / "bench" / "data", tmp_path / "bench" / "all.json")


@pytest.fixture
def fresh(finished: Work, tmp_path: Path) -> Work:
    return Work(finished.data, tmp_path / "fresh.json")


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count trainings by name."""
    counted: Counter[str] = Counter()

    def counting(name: str, fit: Callable[..., Any]) -> Callable[..., Any]:
        def count(*args: Any, **named: Any) -> Any:
            counted[name] += 1
            return fit(*args, **named)

        return count

    for name in FITS:
        module = captions if hasattr(captions, name) else training
        monkeypatch.setattr(module, name, counting(name, getattr(module, name)))
    return counted


def test_all_units_end_in_one_document_and_table(finished: Work) -> None:
    document = finished.document()
    systems = {system for names in UNITS.values() for system in names} | {"dense", "dense_head"}
    for found in document["tasks"].values():
        assert set(found) == systems
        for values in found.values():
            means = [values[name]["mean"] for name in ("success@1", "mrr@10", "success@10")]
            assert 0 <= means[0] <= means[1] <= means[2] <= 1
    # The space finds most of what it never saw, so codes and rows of faiss, which only coarsen it, find much too.
    for name in ("dense", "best_dense", "pro_scan", "scan", "geometry", "faiss_pq", "faiss_opq", "faiss_rq", "best"):
        assert document["tasks"]["i2t"][name]["success@10"]["mean"] > 0.6, name
    assert document["missing"] == [] and document["recipe_of_best"] == "best"
    assert document["images"] == {"val": 12, "test": 12}
    text = finished.out.with_suffix(".md").read_text()
    assert text.count("\n| ") == 2 * (2 + len(systems)) and "±" not in text


def test_bytes_are_told_and_alike(finished: Work) -> None:
    size = finished.document()["bytes_per_item"]
    assert size["dense"] == size["dense_head"] == 4 * 8 and size["dense_ensemble"] == 3 * 4 * 8
    assert size["best_dense"] in (4 * 6, 4 * 8)
    assert size["faiss_pq"] == size["faiss_opq"] == size["faiss_rq"] == int(size["best"])
    assert size["pro"] == size["pd_vs"] == size["pro_scan"] > 0


def test_dense_is_the_better_space_on_validation(finished: Work) -> None:
    document = finished.document()
    values = {
        system: float(np.mean(list(tasks.values())))
        for unit in ("dense", "dense_moved", "dense_longer", "dense_ensemble")
        for system, tasks in finished.part(f"{unit}-0")["validation"]["mrr@10"].items()
    }
    assert document["dense_validation"] == pytest.approx(values)
    chosen = max(("dense_original", "dense_moved"), key=values.__getitem__)
    assert document["space_of_dense"] == chosen and document["strongest_dense"] == max(values, key=values.__getitem__)
    for found in document["tasks"].values():
        assert found["dense"] == found[chosen] and found["dense_head"] == found[f"{chosen}_head"]


def test_spaces_of_dense_rows_differ(finished: Work) -> None:
    names = ("dense", "dense_moved", "dense_longer", "dense_ensemble")
    parts = {name: finished.part(f"{name}-0") for name in names}
    ranks = {json.dumps(part["systems"][UNITS[name][0]]) for name, part in parts.items()}
    assert len(ranks) == len(names)


def test_a_space_without_all_seeds_is_not_chosen(finished: Work) -> None:
    parts = [finished.part("dense-0"), {**finished.part("dense-0"), "seed": 1}, finished.part("dense_moved-0")]
    best = {"t2i": 1.0, "i2t": 1.0}
    parts[2]["validation"] = {"mrr@10": {"dense_moved": best, "dense_moved_head": best}}
    found = with_dense(parts)[1]
    assert found["space_of_dense"] == "dense_original" and "dense_moved" not in found["dense_validation"]
    assert with_dense(parts[2:])[1]["space_of_dense"] == "dense_moved"


def test_every_part_says_what_was_chosen_on_validation(finished: Work) -> None:
    for unit in ("pro", "best", "genius"):
        found = finished.part(f"{unit}-0")["validation"]
        best = max(row["mrr@10"] for row in found["tried"])
        assert {"omega": found["omega"], "prior": found["prior"], "mrr@10": best} in found["tried"]
        assert len(found["tried"]) == len(OMEGAS) * (len(PRIORS) if unit == "best" else 1)
    assert set(finished.part("best-0")["validation"]["scan_mrr@10"]) == {"6", "8"}


def test_a_second_run_trains_nothing(copied: Work, fits: Counter[str], capsys: pytest.CaptureFixture[str]) -> None:
    before = copied.out.read_bytes()
    copied.out.unlink()
    capsys.readouterr()
    assert copied("--json") == 0
    found = capsys.readouterr()
    assert not fits
    assert copied.out.read_bytes() == before
    assert json.loads(found.out) == copied.document()
    assert f"{len(UNITS)} of {len(UNITS)} units are there already" in found.err


def test_a_part_with_other_settings_is_made_again(
    copied: Work, fits: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = copied.part("vs-0")
    monkeypatch.setattr(TinySetting, "decoder_epochs", 2)
    assert copied("--units", "vs") == 0
    after = copied.part("vs-0")
    assert fits == {"fit_query_head": 1, "fit_decoder": 1}  # space and tokenizer are as they were
    assert after["identity"] != before["identity"] and after["config"]["decoder"]["epochs"] == 2
    assert set(copied.document()["tasks"]["t2i"]) == {"vs", "vs_sf"}


def test_other_data_is_measured_anew(copied: Work, fits: Counter[str]) -> None:
    make_captions(copied.data, SPLITS, [2] * len(SPLITS))
    assert copied("--units", "dense") == 0
    assert len(copied.part("dense-0")["systems"]["dense_original"]["t2i"]) == 2 * 12


def test_a_kill_between_units_loses_nothing(
    fresh: Work, finished: Work, fits: Counter[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measure = Captions.measure

    def killed(self: Captions, setting: Setting, unit: Unit) -> dict[str, Any]:
        if unit.name == "pd":
            raise KeyboardInterrupt
        return measure(self, setting, unit)

    with monkeypatch.context() as patch:
        patch.setattr(Captions, "measure", killed)
        assert fresh("--units", "dense,vs,pd") == 130
    assert fits["fit_fusion"] == 1 and fits["fit_decoder"] == 1 and not fresh.out.exists()
    capsys.readouterr()
    assert fresh("--units", "dense,vs,pd") == 0
    assert "2 of 3 units are there already" in capsys.readouterr().err
    assert fits["fit_fusion"] == 1 and fits["fit_decoder"] == 2
    for name in ("dense-0", "vs-0", "pd-0"):
        assert fresh.part(name) == finished.part(name)


def test_jobs_change_no_number(fresh: Work, finished: Work) -> None:
    assert fresh("--units", "dense,vs,genius", "--jobs", "2") == 0
    for name in ("dense-0", "vs-0", "genius-0"):
        assert fresh.part(name) == finished.part(name)
    assert fresh.document()["tasks"]["t2i"]["vs"] == finished.document()["tasks"]["t2i"]["vs"]


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let --jobs work in threads, where a test can reach in."""

    @contextmanager
    def pool(number: int) -> Iterator[ThreadPoolExecutor]:
        with ThreadPoolExecutor(number) as found:
            yield found

    monkeypatch.setattr(units, "worker_pool", pool)


def test_a_training_that_fails_is_told_and_the_others_go_on(
    fresh: Work, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def faulty(*_: object, **__: object) -> None:
        raise RuntimeError("out of\nmemory")

    monkeypatch.setattr(training, "fit_decoder", faulty)
    assert fresh("--units", "dense,vs") == 0
    assert "captions vs-0: failed: RuntimeError: out of memory (2 of 2, " in capsys.readouterr().err
    assert fresh.document()["missing"] == ["vs-0"] and set(fresh.document()["tasks"]["t2i"]) == {
        "dense",
        "dense_head",
        "dense_original",
        "dense_original_head",
    }
    assert fresh("--units", "vs") == 1
    assert "nothing was measured: RuntimeError: out of memory." in capsys.readouterr().err


@pytest.mark.usefixtures("threads")
def test_jobs_keep_to_the_limit(copied: Work, fits: Counter[str]) -> None:
    assert copied("--units", "vs,pd", "--seeds", "2", "--limit", "1e-9", "--jobs", "2") == 0
    assert not fits and copied.document()["missing"] == ["vs-1", "pd-1"]


def test_seeds_are_averaged(copied: Work) -> None:
    assert copied("--units", "dense", "--seeds", "2") == 0
    one, two = (copied.part(f"dense-{seed}")["systems"]["dense_original"]["t2i"] for seed in (0, 1))
    found = copied.document()["tasks"]["t2i"]["dense"]["success@1"]
    assert found["mean"] == pytest.approx(np.mean([np.mean(np.array(ranks) == 1) for ranks in (one, two)]))
    assert one != two


def test_after_the_limit_nothing_begins_and_what_is_there_is_told(
    copied: Work, fits: Counter[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert copied("--units", "dense,vs", "--seeds", "2", "--limit", "1e-9") == 0
    assert not fits
    assert copied.document()["missing"] == ["dense-1", "vs-1"]
    assert "Not measured: dense-1, vs-1." in capsys.readouterr().err


def test_the_test_split_has_no_say(fresh: Work, finished: Work, tmp_path: Path) -> None:
    """With other features of the test split, everything trained and chosen stays as it was."""
    fresh.data = Path(shutil.copytree(finished.data, tmp_path / "other"))
    for name, rows in (("image_features", 48), ("text_features", 3 * 48)):
        array = np.load(fresh.data / f"{name}.npy")
        array[rows:] = np.random.default_rng(1).normal(size=array[rows:].shape)
        np.save(fresh.data / f"{name}.npy", array)
    assert fresh("--units", "best") == 0
    assert fresh.part("best-0")["validation"] == finished.part("best-0")["validation"]
    assert fresh.part("best-0")["systems"] != finished.part("best-0")["systems"]


def test_nothing_but_our_own_lines_is_printed(copied: Work, capfd: pytest.CaptureFixture[str]) -> None:
    for name in quantisers.QUANTISERS:
        copied.path(f"{name}-0").unlink()
    capfd.readouterr()
    assert copied("--units", ",".join(quantisers.QUANTISERS)) == 0
    found = capfd.readouterr()
    assert found.out == ""
    lines = [line for line in found.err.splitlines() if line and not line.startswith(("| ", "## "))]
    assert [line.split(":")[0].split(" to ")[0] for line in lines] == [
        *(f"captions {name}-0" for name in quantisers.QUANTISERS),
        "written",
    ]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--units", "dense,prod"), "unit is 'prod', but must be one of: dense, dense_moved, "),
        (("--units", ""), "unit is '', but must be one of: "),
        (("--scale", "paper"), "scale is 'paper', but must be one of: captions, captions_small."),
        (("--seeds", "0"), "--seeds must be at least 1, not 0."),
        (("--jobs", "0"), "--jobs must be at least 1, not 0."),
        (("--device", "abacus"), "device is 'abacus'"),
        (("--out", "table.md"), "must be a .json file"),
        (("--data", "nowhere"), "--data is nowhere, but must be a folder"),
        (("--limit", "1e-9"), "nothing was measured: not measured yet."),
    ],
)
def test_wrong_requests_are_refused_in_one_sentence(
    fresh: Work, fits: Counter[str], capsys: pytest.CaptureFixture[str], more: tuple[str, ...], message: str
) -> None:
    capsys.readouterr()
    assert fresh(*more) == 1
    found = capsys.readouterr()
    assert message in found.err and len(found.err.strip().splitlines()) == 1 and found.out == ""
    assert not fits


def test_without_faiss_its_rows_are_refused_before_anything_is_trained(
    fresh: Work, fits: Counter[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    assert fresh() == 1
    assert "pip install faiss-cpu" in capsys.readouterr().err and not fits


@pytest.mark.parametrize("name", quantisers.QUANTISERS)
@pytest.mark.parametrize("rows", [300, 40])
def test_quantisers_keep_more_in_more_bytes(name: str, rows: int) -> None:
    item = np.random.default_rng(0).normal(size=(320, 10)).astype(np.float32)
    hats = [quantisers.reconstruct(name, item, np.arange(rows), size) for size in (2, 5)]
    coarse, fine = (float(np.square(hat - item).mean()) for hat in hats)
    assert 0 < fine < coarse < float(np.square(item).mean())
