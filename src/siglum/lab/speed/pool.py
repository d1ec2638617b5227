"""What search speed is measured on: a pool of clustered items with their codes, queries near them, and right answers.

Vectors are drawn from a mixture of mixtures of Gaussians in a subspace, and coded by residual k-means there: distances
are those of the whole space at an eighth of the arithmetic. A trained run brings its own items, codes and queries.
Speed does not depend on what weights learnt, so a drawn pool's decoder is random, of the size of a recipe.
Shapes: N items, Q queries, T tokens an item, D numbers a vector, S numbers a vector in its subspace, V codewords.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from siglum.config import RunConfig, SearchConfig, as_dict, from_dict
from siglum.files import fingerprint, read_json, read_tensors, write_json, write_tensors
from siglum.fuse.contrastive import kinds_of
from siglum.generate.decoder import CodeDecoder
from siglum.generate.query import QueryHead
from siglum.index import Index
from siglum.lab.speed.bench import beyond_paper
from siglum.tokenize.base import NUM_MODALITIES
from siglum.tokenize.kmeans import nearest
from siglum.types import SiglumError

K = 50
"""Items a query asks for."""
LEARNT = 256
"""Queries beside the timed ones that an engine may look at beforehand."""
SUBSPACE = 96
SAMPLE = 20_000
"""Vectors that codebooks are made from."""
LLOYD = 4
"""Lloyd iterations a level."""
FEATURES = 768
"""Numbers that a query head reads of an image, and of a text."""


@dataclass(slots=True)
class Pool:
    """N items as vectors and as an index, queries, and the model that searches them."""

    index: Index
    codebooks: list[Tensor]
    first_geometric: int
    """First level whose token carries a codeword."""
    config: SearchConfig
    query_QD: Tensor
    learnt_LD: Tensor
    """More queries like these, which are not timed."""
    vector_NS: Tensor
    basis_SD: Tensor | None
    model: RunConfig | str
    """What the decoder is made of: a configuration, or the folder of a trained run."""
    notes: list[str] = field(default_factory=list)
    """What to know about the pool."""
    reference: dict[str, list[np.ndarray]] = field(default_factory=dict)
    """Positions that the reference search finds for the first queries, by score."""

    def item_ND(self) -> Tensor:
        """Return the item vectors."""
        return self.vector_NS if self.basis_SD is None else self.vector_NS @ self.basis_SD

    @property
    def score(self) -> str:
        """The score that the pool is searched by: the paper's, or the recipe's that asks for more."""
        return self.model.recipe if isinstance(self.model, RunConfig) and beyond_paper(self.config) else "paper"

    def decoder(self) -> CodeDecoder:
        """Return the decoder: the run's, or one with seeded random weights."""
        if isinstance(self.model, RunConfig):
            generator = torch.Generator().manual_seed(0)
            return CodeDecoder(self.model.decoder, self.index.sizes, self.query_QD.shape[1], generator).eval()
        from siglum.search.retriever import Retriever

        decoder = Retriever.load(self.model).decoder
        if decoder is None:
            raise SiglumError(f"{self.model} has no decoder to measure; train one first.")
        return decoder.eval()

    def query_head(self) -> QueryHead | None:
        """Return a query head of the recipe's size with random weights; a run's queries have been through its own.

        What random towers answer counts nothing, so that queries stay near items; only the time they take counts.
        """
        if not isinstance(self.model, RunConfig) or not self.model.query.members:
            return None
        head = QueryHead(self.model.query, self.query_QD.shape[1], FEATURES, FEATURES).eval()
        head.blend_M.zero_()
        return head


@torch.no_grad()
def draw_pool(items: int, queries: int, model: RunConfig | str, near: float = 0.0) -> Pool:
    """Return a pool without answers: the items of a trained run, or seeded random ones, a share of them near others."""
    if isinstance(model, str):
        return _run_pool(Path(model), items, queries)
    dim, queries = model.fusion.dim, queries + LEARNT
    first_geometric = int(model.tokenizer.modality != "none")
    generator = torch.Generator().manual_seed(items)
    width = min(SUBSPACE, dim // 2)
    basis_SD = torch.linalg.qr(torch.randn(dim, width, generator=generator)).Q.T.contiguous()
    draw = _Mixture(items, width, generator)
    books = residual_codebooks(draw(SAMPLE), model.tokenizer.vocab, generator)
    vector_NS = draw(items)
    if near:
        draw.crowd(vector_NS, int(near * items))
    kinds_N1 = torch.randint(NUM_MODALITIES, (items, first_geometric), generator=generator)
    codes_NT = torch.cat([kinds_N1, residual_codes(vector_NS, books)], 1)
    near_QS = vector_NS[torch.randint(items, (queries,), generator=generator)]
    noise_QS = torch.randn(queries, width, generator=generator) / width**0.5
    query_QD = F.normalize(near_QS + 0.7 * noise_QS, dim=1) @ basis_SD
    sizes = (NUM_MODALITIES,) * first_geometric + model.tokenizer.vocab
    return Pool(
        Index.build([str(place) for place in range(items)], codes_NT.numpy(), sizes, "random"),
        [torch.zeros(NUM_MODALITIES, dim)] * first_geometric + [book @ basis_SD for book in books],
        first_geometric,
        model.search,
        query_QD[:-LEARNT],
        query_QD[-LEARNT:],
        vector_NS,
        basis_SD,
        model,
        ["queries pass a query head with random weights first: its time counts, its answers do not."]
        * bool(model.query.members),
    )


def save_pool(pool: Pool, folder: Path) -> None:
    """Write a pool with its answers into a folder."""
    pool.index.save(folder / "index")
    books = {f"book_{level}": book for level, book in enumerate(pool.codebooks)}
    arrays = {"vectors": pool.vector_NS, "queries": torch.cat([pool.query_QD, pool.learnt_LD]), **books}
    if pool.basis_SD is not None:
        arrays["basis"] = pool.basis_SD
    write_tensors(folder / "pool.safetensors", arrays)
    model = pool.model if isinstance(pool.model, str) else as_dict(pool.model)
    facts = {
        "first": pool.first_geometric,
        "search": as_dict(pool.config),
        "learnt": len(pool.learnt_LD),
        "notes": pool.notes,
    }
    answers = {name: [row.tolist() for row in rows] for name, rows in pool.reference.items()}
    write_json(folder / "pool.json", {**facts, "model": model, "reference": answers})


def open_pool(folder: Path) -> Pool:
    """Read what `save_pool` wrote."""
    facts, arrays = read_json(folder / "pool.json"), read_tensors(folder / "pool.safetensors")
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    cut, model = len(tensors["queries"]) - facts["learnt"], facts["model"]
    return Pool(
        Index.load(folder / "index"),
        [tensors[f"book_{level}"] for level in range(sum(name.startswith("book_") for name in tensors))],
        facts["first"],
        from_dict(SearchConfig, facts["search"]),
        tensors["queries"][:cut],
        tensors["queries"][cut:],
        tensors["vectors"],
        tensors.get("basis"),
        model if isinstance(model, str) else from_dict(RunConfig, model),
        facts["notes"],
        {name: [np.array(row, np.int64) for row in rows] for name, rows in facts["reference"].items()},
    )


class _Mixture:
    """Unit vectors in clusters of clusters: about 2,000 items share a coarse centre and 50 a fine one.

    Directions differ in length, as those of an encoder do; otherwise residuals could hardly be quantised.
    """

    def __init__(self, items: int, width: int, generator: torch.Generator) -> None:
        self.length_S = torch.arange(1, width + 1) ** -0.5
        self.generator = generator
        coarse_CS = self._noise(max(8, items // 2000))
        fine = torch.randint(len(coarse_CS), (max(16, items // 50),), generator=generator)
        self.centre_CS = coarse_CS[fine] + 0.8 * self._noise(len(fine))

    def __call__(self, number: int) -> Tensor:
        """Return so many vectors (N, S)."""
        near = torch.randint(len(self.centre_CS), (number,), generator=self.generator)
        return F.normalize(self.centre_CS[near] + 0.6 * self._noise(number), dim=1)

    def crowd(self, vector_NS: Tensor, number: int) -> None:
        """Put so many of the vectors next to others."""
        copies = torch.randperm(len(vector_NS), generator=self.generator)[:number]
        source = torch.randint(len(vector_NS), (number,), generator=self.generator)
        vector_NS[copies] = F.normalize(vector_NS[source] + 0.003 * self._noise(number), dim=1)

    def _noise(self, number: int) -> Tensor:
        return self.length_S * torch.randn(number, len(self.length_S), generator=self.generator)


def residual_codebooks(vector_NS: Tensor, sizes: tuple[int, ...], generator: torch.Generator) -> list[Tensor]:
    """Return a codebook (V, S) a level by k-means over what the levels before leave."""
    residual, books = vector_NS.clone(), []
    for size in sizes:
        # Half-way to the mean, since single points are too far out to be the nearest of any other.
        book = residual[torch.randint(len(residual), (size,), generator=generator)] / 2
        for _ in range(LLOYD):
            near = nearest(residual, book)
            count = torch.bincount(near, minlength=size)
            mean = torch.zeros_like(book).index_add_(0, near, residual) / count.clamp(min=1)[:, None]
            fresh = residual[torch.randint(len(residual), (size,), generator=generator)] / 2
            book = torch.where((count > 0)[:, None], mean, fresh)
        books.append(book)
        residual -= book[nearest(residual, book)]
    return books


def residual_codes(vector_NS: Tensor, books: list[Tensor]) -> Tensor:
    """Return the nearest codeword of every level to what the levels before leave (N, T).

    >>> residual_codes(torch.tensor([[1.2]]), [torch.tensor([[0.0], [1.0]]), torch.tensor([[0.3], [-0.5]])]).tolist()
    [[1, 0]]
    """
    residual, codes = vector_NS.clone(), []
    for book in books:
        codes.append(nearest(residual, book))
        residual -= book[codes[-1]]
    return torch.stack(codes, 1)


def _run_pool(run: Path, items: int, queries: int) -> Pool:
    """Return some of a run's test items, or all and items made from them, with its test queries."""
    from siglum.measure.systems import open_systems
    from siglum.run.folder import RunFolder

    systems = open_systems(RunFolder(run))
    if systems.own is None or systems.retriever.decoder is None:
        raise SiglumError(f"{run} has no decoder to measure; train one first.")
    generator = torch.Generator().manual_seed(items)
    rows = torch.as_tensor(systems.rows)
    chosen = rows[torch.randperm(len(rows), generator=generator)[:items]]
    vector_ND, kinds = systems.coded.item_ND[chosen], kinds_of(systems.vectors.items)[chosen]
    if items > len(rows):
        one, two, three = torch.randint(len(rows), (3, items - len(rows)), generator=generator)
        step = 0.3 * (vector_ND[two] - vector_ND[three])
        vector_ND = torch.cat([vector_ND, F.normalize(vector_ND[one] + step, dim=1)])
        kinds = torch.cat([kinds, kinds[one]])
    retriever = systems.retriever
    quantizer, books = retriever.tokenizer.quantizer, retriever.tokenizer.codebooks()
    codes_NT = quantizer.encode(vector_ND, kinds).numpy()
    asked = np.concatenate([task.query_rows for task in systems.vectors.of_split(systems.split)])
    order = torch.randperm(len(asked), generator=generator)
    if not isinstance(systems.own.query_MD, torch.Tensor):
        raise SiglumError(f"the queries of {run} are histories, and speed is measured on vectors; give another run.")
    query_QD = systems.own.query_MD[torch.as_tensor(asked)[order]]
    kept = max(1, len(query_QD) - LEARNT) if len(query_QD) <= queries + LEARNT else queries
    notes = [f"{len(rows):,} of the {items:,} items are the run's, the others mixtures of them."] * (items > len(rows))
    plain: dict[str, Any] = {"scorer": "fused", "normalisation": "level", "leaf_order": "pool"}
    plain |= {"zscore": False, "prior": 0.0, "lookahead": False}
    config = replace(retriever.config, mode="exact", precision="fp32", **plain)
    changed = [name for name, value in plain.items() if getattr(retriever.config, name) != value]
    notes += [f"the run's search.{name} was set to {plain[name]}, which all engines know." for name in changed]
    return Pool(
        Index.build([str(place) for place in range(items)], codes_NT, retriever.index.sizes, fingerprint(str(run))),
        [book.detach() for book in books],
        quantizer.first_geometric,
        config,
        query_QD[:kept],
        query_QD[kept : kept + LEARNT],
        vector_ND,
        None,
        str(run),
        notes,
    )
