"""Shared test data: a small random collection with all three modalities, random tries, and one whole tiny run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import Tensor

from siglum.cli.main import main
from siglum.config import DecoderConfig, WorldConfig
from siglum.device import CPU_CAP, bears_half_products
from siglum.encode.builtin import BuiltinEncoder
from siglum.generate.decoder import CodeDecoder
from siglum.index import Index
from siglum.lab.world.collection import World, world_collection
from siglum.recipes import recipe
from siglum.run import stages
from siglum.run.folder import RunFolder
from siglum.types import Features, Task, Vectors

MakeVectors = Callable[..., Vectors]

TINY = recipe("pro", "tiny")
QUICK = replace(
    TINY,
    fusion=replace(TINY.fusion, epochs=1),
    tokenizer=replace(TINY.tokenizer, epochs=1, vocab=(8, 16)),
    decoder=replace(TINY.decoder, epochs=1),
)
"""Settings that train a whole run in a second or two."""
NUM_ITEMS, NUM_QUERIES, NUM_TRAIN, NUM_VAL = 300, 400, 300, 50
LATENT = 8


def pytest_configure() -> None:
    """Keep to one core, let hypothesis take its time on few examples, and have kernels without a GPU interpreted."""
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # read where Triton is imported, so before any test imports it
    if CPU_CAP[0] not in os.environ and not bears_half_products():
        os.environ.update([CPU_CAP])  # read at the first product
        bears_half_products.cache_clear()
    torch.set_num_threads(1)
    settings.register_profile("siglum", deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("siglum")


def _features(
    prefix: str, latent: np.ndarray, kind: np.ndarray, maps: list[np.ndarray], noise: float, rng: np.random.Generator
) -> Features:
    """Show each latent row through the parts its kind (0 image, 1 text, 2 both) has; a missing part is a zero row."""
    has = [kind != 1, kind != 0]
    parts = []
    for there, one in zip(has, maps, strict=True):
        rows = latent @ one + noise * rng.normal(size=(len(latent), one.shape[1]))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        parts.append((rows * there[:, None]).astype(np.float32))
    return Features([f"{prefix}{row}" for row in range(len(latent))], parts[0], parts[1], has[0], has[1])


def build_vectors(seed: int = 0, image_dim: int = 16, text_dim: int = 12, noise: float = 0.1) -> Vectors:
    """Return 300 items and 400 queries (300 train, 50 val, 50 test); a query is its item seen with noise."""
    rng = np.random.default_rng(seed)
    maps = [rng.normal(size=(LATENT, dim)) for dim in (image_dim, text_dim)]
    item_latent, kind = rng.normal(size=(NUM_ITEMS, LATENT)), np.arange(NUM_ITEMS) % 3
    # Some items are asked for more than once, so that batches hold repeated targets.
    target = rng.permutation(
        np.concatenate([np.arange(NUM_ITEMS), rng.integers(0, NUM_ITEMS, NUM_QUERIES - NUM_ITEMS)])
    )
    query_latent = item_latent[target] + noise * rng.normal(size=(NUM_QUERIES, LATENT))
    items = _features("x", item_latent, kind, maps, noise, rng)
    queries = _features("q", query_latent, rng.integers(0, 3, NUM_QUERIES), maps, noise, rng)
    tasks = []
    for split, start, end in (("val", NUM_TRAIN, NUM_TRAIN + NUM_VAL), ("test", NUM_TRAIN + NUM_VAL, NUM_QUERIES)):
        for code, name in enumerate(("i", "t", "it")):
            rows = np.arange(start, end)[kind[target[start:end]] == code]
            tasks.append(
                Task(f"any2{name}", split, rows, np.flatnonzero(kind == code), [target[row : row + 1] for row in rows])
            )
    return Vectors(items, queries, np.arange(NUM_TRAIN), target[:NUM_TRAIN], tasks)


@pytest.fixture(scope="session")
def make_vectors() -> MakeVectors:
    """A function that makes a random collection: (seed, image_dim, text_dim, noise)."""
    return build_vectors


@pytest.fixture
def vectors() -> Vectors:
    """300 items and 400 queries of all three modalities, with training pairs, val and test tasks."""
    return build_vectors()


@dataclass
class System:
    """Random codes in an index, with codebooks, an untrained decoder and unit queries that fit them."""

    codes: np.ndarray
    """In pool order (N, L)."""
    index: Index
    codebooks: list[Tensor]
    decoder: CodeDecoder
    query: Tensor

    def reconstructions(self) -> Tensor:
        """Return the full reconstruction of every item in pool order (N, D)."""
        return sum(book[torch.as_tensor(self.codes[:, level])] for level, book in enumerate(self.codebooks))

    def log_probability(self) -> Tensor:
        """Return log P(codes | q) of every query and item by teacher forcing (Q, N)."""
        codes = torch.as_tensor(self.codes)
        rows = []
        with torch.no_grad():
            for query in self.query:
                logits = self.decoder(query.expand(len(codes), -1), codes)
                rows.append(sum(x.log_softmax(-1).gather(1, codes[:, [i]])[:, 0] for i, x in enumerate(logits)))
        return torch.stack(rows)


MakeSystem = Callable[..., System]
SMALL_DECODER = DecoderConfig(d_model=16, d_ff=32, d_kv=4, heads=2, encoder_layers=1, decoder_layers=2, soft_tokens=2)


def build_system(
    seed: int = 0, items: int = 24, sizes: tuple[int, ...] = (3, 4, 5, 4), queries: int = 3, dim: int = 6
) -> System:
    """Return a random trie with shared prefixes; about a fifth of the items have the codes of another one."""
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(0, size, items) for size in sizes], 1)
    copies = rng.permutation(items)[: items // 5]
    codes[copies] = codes[rng.integers(0, items, len(copies))]
    generator = torch.Generator().manual_seed(seed)
    books = [0.5**level * torch.randn(size, dim, generator=generator) / dim**0.5 for level, size in enumerate(sizes)]
    decoder = CodeDecoder(SMALL_DECODER, sizes, dim, generator).eval()
    query = torch.nn.functional.normalize(torch.randn(queries, dim, generator=generator), dim=1)
    return System(codes, Index.build([f"x{i}" for i in range(items)], codes, sizes, "tok"), books, decoder, query)


@pytest.fixture(scope="session")
def make_system() -> MakeSystem:
    """A function that makes a random trie with codebooks, decoder and queries: (seed, items, sizes, queries, dim)."""
    return build_system


WORLD_ITEMS = 480


@pytest.fixture(scope="session")
def world() -> World:
    """The drawn world behind `world_run`."""
    return World(WORLD_ITEMS, 0)


@pytest.fixture(scope="session")
def world_run(tmp_path_factory: pytest.TempPathFactory, world: World) -> Path:
    """A finished run folder (stages 1 to 4) on a tiny world; read it, never write to it.

    Its index holds the test pools, so that there are other items of the world to add.
    """
    run = RunFolder(tmp_path_factory.mktemp("world") / "run")
    run.write_config(replace(recipe("pro", "tiny"), world=WorldConfig(items=WORLD_ITEMS)))
    stages.make_vectors(run, world_collection(world), BuiltinEncoder(), identity=f"world {WORLD_ITEMS} 0 1")
    stages.make_tokenizer(run)
    stages.make_decoder(run)
    stages.make_index(run, pools="test")
    return run.root


@pytest.fixture
def run_copy(world_run: Path, tmp_path: Path) -> Path:
    """A copy of `world_run` that a test may change."""
    return Path(shutil.copytree(world_run, tmp_path / "run"))


Call = Callable[..., str]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run a verb that must succeed and return what it printed on stdout."""

    def run(*args: object) -> str:
        capsys.readouterr()
        code = main([str(arg) for arg in args])
        found = capsys.readouterr()
        assert code == 0, found.err
        return found.out

    return run


@pytest.fixture
def fail(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run a verb that must fail and return its one sentence."""

    def run(*args: object) -> str:
        capsys.readouterr()
        code = main([str(arg) for arg in args])
        found = capsys.readouterr()
        assert code == 1
        assert found.out == ""
        lines = found.err.strip().splitlines()
        assert len(lines) == 1, found.err
        assert lines[0].startswith(f"siglum {args[0]}: ")
        return lines[0]

    return run
