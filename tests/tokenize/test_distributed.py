"""Two processes train as one does on the same global batches, and only the first one writes.

Run as a script this file is one of the two processes.
"""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as td
from torch import Tensor

import siglum
from siglum import dist
from siglum.config import FusionConfig, TokenizerConfig
from siglum.data.vectors import load_vectors, save_vectors
from siglum.files import read_json, read_tensors, write_json, write_tensors
from siglum.fuse.contrastive import contrastive_loss, embed, fit_fusion, new_fusion
from siglum.log import JsonlLog, read_log
from siglum.tokenize.train import Tokenizer, fit_tokenizer
from siglum.types import SiglumError, Vectors

WORLD = 2
LIMIT_S = 50
FUSION = FusionConfig(
    kind="combiner", dim=12, projection=16, hidden=16, temperature=0.1, epochs=2, batch_size=60, lr=2e-3
)
CONFIG = TokenizerConfig(
    vocab=(8, 8, 16),
    epochs=2,
    batch_size=60,
    lr=1e-3,
    top_k=32,
    temperature=0.1,
    rq_weight=2.0,
    mse_weight=2.0,
    rank_weight=1.0,
)
REVIVING = replace(CONFIG, vocab=(16, 32), revive_below=0.4)


def train_all(vectors: Vectors, folder: Path | None) -> dict[str, Tokenizer]:
    """Run what is compared: every mode of the codebooks, and one with revivals."""
    configs = {update: replace(CONFIG, update=update) for update in ("hybrid", "grad", "ema")} | {"reviving": REVIVING}
    runs = {}
    for name, config in configs.items():
        log = JsonlLog(folder / f"{name}.jsonl") if folder and name == "hybrid" else None
        checkpoint = folder / "checkpoint" if folder and name == "hybrid" else None
        runs[name] = fit_tokenizer(
            vectors, new_fusion(vectors, FUSION, 0, "cpu"), config, seed=1, folder=checkpoint, log=log
        )
    return runs


def results(vectors: Vectors, runs: dict[str, Tokenizer]) -> dict[str, Tensor]:
    kinds = torch.as_tensor(vectors.items.modality.astype(np.int64))
    found: dict[str, Tensor] = {}
    for name, tokenizer in runs.items():
        item = embed(tokenizer.fusion, vectors.items, "cpu")
        found |= {f"{name}.vectors": item, f"{name}.codes": tokenizer.quantizer.encode(item, kinds)}
        found |= {f"{name}.book{level}": book for level, book in enumerate(tokenizer.codebooks())}
    return found


def gathered_gradient(query: Tensor, target: Tensor, ids: Tensor) -> Tensor:
    """Return the gradient of the mean loss over all processes to this process's rows of query and target."""
    own = slice(dist.rank() * len(query) // dist.world(), (dist.rank() + 1) * len(query) // dist.world())
    rows = [part[own].clone().requires_grad_() for part in (query, target)]
    (contrastive_loss(rows[0], rows[1], ids[own], 0.1) / dist.world()).backward()  # type: ignore[no-untyped-call]
    return torch.stack([part.grad for part in rows if part.grad is not None])


def averaged_gradient() -> Tensor:
    """Return the averages of two parameters: one has gradient rank + 1, the other has one on the first process only."""
    both = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    both[0].grad = torch.full((2,), dist.rank() + 1.0)
    both[1].grad = torch.ones(2) if dist.rank() == 0 else None
    dist.average_gradients(both)
    return torch.stack([part.grad for part in both if part.grad is not None])


def gradient_case() -> tuple[Tensor, Tensor, Tensor]:
    rows = torch.nn.functional.normalize(torch.randn(2, 8, 5, generator=torch.Generator().manual_seed(0)), dim=-1)
    return rows[0], rows[1], torch.tensor([0, 1, 2, 3, 1, 5, 6, 0])


def worker(rank: int, folder: Path) -> None:
    """Be one process: train, write what came out, and say what an uneven batch is answered with."""
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=LIMIT_S)
    td.init_process_group(
        "gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=WORLD, timeout=timeout
    )
    vectors, _ = load_vectors(folder / "vectors")
    runs = train_all(vectors, folder)
    fusion, history = fit_fusion(vectors, FUSION, seed=1, folder=folder / "fusion")
    refused = ""
    try:
        dist.share(torch.arange(7))
    except SiglumError as error:
        refused = str(error)
    tensors = results(vectors, runs) | {f"fusion.{name}": value for name, value in fusion.state_dict().items()}
    write_tensors(
        folder / f"rank{rank}.safetensors",
        tensors | {"gradient": gathered_gradient(*gradient_case()), "average": averaged_gradient()},
    )
    write_json(
        folder / f"rank{rank}.json",
        {"history": {name: run.history for name, run in runs.items()} | {"fusion": history}, "refused": refused},
    )
    td.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of two processes."""
    folder = tmp_path_factory.mktemp("distributed")
    save_vectors(folder / "vectors", make(), {})
    environment = os.environ | {"PYTHONPATH": str(Path(siglum.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    if sys.platform == "linux":
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    command = [sys.executable, __file__]
    started = [
        subprocess.Popen(
            [*command, str(rank), str(folder)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(WORLD)
    ]
    try:
        said = [process.communicate(timeout=LIMIT_S)[0] for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert [process.returncode for process in started] == [0] * WORLD, "\n".join(said)
    return folder


def make() -> Vectors:
    """Return a small collection with repeated targets."""
    from siglum.data.vectors import features_of
    from siglum.types import Task

    rng = np.random.default_rng(0)
    latent = rng.normal(size=(150, 6))
    target = np.concatenate([np.arange(150), rng.integers(0, 150, 120)])
    maps = rng.normal(size=(2, 6, 10))

    def parts(rows: np.ndarray, kind: np.ndarray) -> list[np.ndarray]:
        shown = [rows @ one + 0.1 * rng.normal(size=(len(rows), 10)) for one in maps]
        shown[0][kind == 1] = shown[1][kind == 0] = np.nan
        return [part.astype(np.float32) for part in shown]

    image, text = parts(latent, np.arange(150) % 3)
    items = features_of([f"x{row}" for row in range(150)], image=image, text=text)
    image, text = parts(latent[target], rng.integers(0, 3, 270))
    queries = features_of([f"q{row}" for row in range(270)], image=image, text=text)
    task = Task("any", "val", np.arange(240, 270), np.arange(150), [target[row : row + 1] for row in range(240, 270)])
    return Vectors(items, queries, np.arange(240), target[:240], [task])


@pytest.fixture(scope="module")
def single(folder: Path) -> dict[str, Tokenizer]:
    """The same runs in this one process."""
    return train_all(load_vectors(folder / "vectors")[0], None)


@pytest.mark.parametrize("update", ["hybrid", "grad", "ema", "reviving"])
def test_two_processes_end_where_one_does(folder: Path, single: dict[str, Tokenizer], update: str) -> None:
    wanted, found = single[update], read_tensors(folder / "rank0.safetensors")
    for level, book in enumerate(wanted.codebooks()):
        np.testing.assert_allclose(found[f"{update}.book{level}"], book.numpy(), atol=1e-5, rtol=0)
    vectors, _ = load_vectors(folder / "vectors")
    expected = results(vectors, {update: wanted})
    np.testing.assert_allclose(found[f"{update}.vectors"], expected[f"{update}.vectors"].numpy(), atol=1e-5, rtol=0)
    differ = (found[f"{update}.codes"] != expected[f"{update}.codes"].numpy()).any(1)
    assert differ.mean() <= 0.01, "codes differ at near-ties alone"


@pytest.mark.parametrize("update", ["hybrid", "grad", "ema", "reviving"])
def test_the_logged_numbers_are_those_of_the_global_batch(
    folder: Path, single: dict[str, Tokenizer], update: str
) -> None:
    found = read_json(folder / "rank0.json")["history"][update]
    for metrics, wanted in zip(found, single[update].history, strict=True):
        assert metrics.keys() == wanted.keys()
        for name, value in wanted.items():
            assert metrics[name] == pytest.approx(value, abs=1e-5), name


def test_contrastive_training_ends_where_one_process_does(folder: Path) -> None:
    vectors, _ = load_vectors(folder / "vectors")
    fusion, history = fit_fusion(vectors, FUSION, seed=1)
    found = read_tensors(folder / "rank0.safetensors")
    for name, value in fusion.state_dict().items():
        np.testing.assert_allclose(found[f"fusion.{name}"], value.numpy(), atol=1e-5, rtol=0)
    for metrics, wanted in zip(read_json(folder / "rank0.json")["history"]["fusion"], history, strict=True):
        assert metrics["loss_cl"] == pytest.approx(wanted["loss_cl"], abs=1e-5)


def test_gathered_rows_send_their_gradient_home(folder: Path) -> None:
    wanted = gathered_gradient(*gradient_case())
    found = np.concatenate(
        [read_tensors(folder / f"rank{rank}.safetensors")["gradient"] for rank in range(WORLD)], axis=1
    )
    np.testing.assert_allclose(found, wanted.numpy(), atol=1e-6)


def test_gradients_are_averaged_and_a_missing_one_counts_as_zero(folder: Path) -> None:
    for rank in range(WORLD):
        found = read_tensors(folder / f"rank{rank}.safetensors")["average"]
        np.testing.assert_array_equal(found, [[1.5, 1.5], [0.5, 0.5]])


def test_all_processes_end_in_the_same_bits_also_with_revivals(folder: Path) -> None:
    left, right = (read_tensors(folder / f"rank{rank}.safetensors") for rank in range(WORLD))
    assert all(np.array_equal(left[name], right[name]) for name in left if name != "gradient")
    histories = [read_json(folder / f"rank{rank}.json")["history"] for rank in range(WORLD)]
    assert histories[0] == histories[1]
    assert sum(metrics["revived"] for metrics in histories[0]["reviving"]) > 0


def test_only_the_first_process_writes_checkpoints_and_logs(folder: Path) -> None:
    lines = (folder / "hybrid.jsonl").read_text().splitlines()
    assert len(lines) == CONFIG.epochs
    assert len(read_log(folder / "hybrid.jsonl")) == CONFIG.epochs
    assert sorted(path.name for path in (folder / "checkpoint").iterdir()) == [
        "checkpoint.json",
        "state-00002.safetensors",
    ]
    best, *others = sorted(path.name for path in (folder / "fusion").iterdir())
    assert best.startswith("best-0000")
    assert others == ["checkpoint.json", "state-00002.safetensors"]


def test_a_run_of_several_processes_can_be_resumed_by_one(folder: Path, single: dict[str, Tokenizer]) -> None:
    vectors, _ = load_vectors(folder / "vectors")
    start = new_fusion(vectors, FUSION, 0, "cpu")
    resumed = fit_tokenizer(
        vectors, start, replace(CONFIG, update="hybrid"), seed=1, folder=folder / "checkpoint", resume=True
    )
    torch.testing.assert_close(resumed.codebooks(), single["hybrid"].codebooks(), atol=1e-5, rtol=0)


def test_an_uneven_batch_is_refused_instead_of_hanging(folder: Path) -> None:
    for rank in range(WORLD):
        assert "a batch of 7 pairs does not divide by 2 processes" in read_json(folder / f"rank{rank}.json")["refused"]


def test_one_process_needs_no_collective() -> None:
    rows = torch.arange(6.0, requires_grad=True)
    assert dist.world() == 1
    assert dist.rank() == 0
    assert dist.share(rows) is rows
    assert dist.gather(rows) is rows
    assert dist.sum_over_processes(rows) is rows
    dist.wait()


if __name__ == "__main__":
    worker(int(sys.argv[1]), Path(sys.argv[2]))
