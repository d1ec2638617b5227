"""What search speed is measured on: a pool of clustered items with their codes, queries near them, and right answers.

Vectors are drawn from a mixture of mixtures of Gaussians in a subspace, and coded by residual k-means there: distances
are those of the whole space at an eighth of the arithmetic. A trained run brings its own items, codes and queries.
Shapes: N items, Q queries, T tokens an item, D numbers a vector, S numbers a vector in its subspace, V codewords.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from siglum.config import RunConfig, SearchConfig, as_dict, from_dict
from siglum.files import fingerprint, read_json, read_tensors, write_json, write_tensors
from siglum.generate.decoder import CodeDecoder
from siglum.index import Index
from siglum.recipes import recipe
from siglum.search.beam import Ranking, search_items
from siglum.search.scorers import build_scorer
from siglum.tokenize.rq import NUM_MODALITIES

K = 50
"""Items a query asks for."""
CHECKED = {"paper": 32, "joint": 8}
"""Queries that the reference search answers too: by the paper's score, and by log P over all tokens at once alone."""
LEARNT = 256
"""Queries beside the timed ones that an engine may look at beforehand."""
SUBSPACE = 96
SAMPLE = 20_000
"""Vectors that codebooks are made from."""
LLOYD = 4
"""Lloyd iterations a level."""


@dataclass(slots=True)
class Pool:
    """N items as vectors and as an index, queries, and the model that searches them."""

    index: Index
    codebooks: list[Tensor]
    first: int
    """First level whose token carries a codeword."""
    config: SearchConfig
    query_QD: Tensor
    learnt_LD: Tensor
    """More queries like these, which are not timed."""
    reference: dict[str, list[np.ndarray]]
    """Positions that the reference search finds for the first queries, by score."""
    vector_NS: Tensor
    basis_SD: Tensor | None
    model: tuple[str, str | None]
    """Scale, and the folder of a trained run where there is one."""
    notes: list[str]
    """What to know about the pool."""

    def item_ND(self) -> Tensor:
        """Return the item vectors."""
        return self.vector_NS if self.basis_SD is None else self.vector_NS @ self.basis_SD

    def decoder(self) -> CodeDecoder:
        """Return the decoder: the run's, or one with seeded random weights."""
        scale, run = self.model
        if run is not None:
            return trained_decoder(Path(run))
        return random_decoder(recipe("pro", scale), self.query_QD.shape[1])


def random_decoder(config: RunConfig, dim: int) -> CodeDecoder:
    """Return a decoder of the recipe's size with seeded random weights."""
    # Not every library can do without an encoder layer.
    own = replace(config.decoder, encoder_layers=max(1, config.decoder.encoder_layers))
    return CodeDecoder(own, sizes_of(config), dim, torch.Generator().manual_seed(0)).eval()


def trained_decoder(run: Path) -> CodeDecoder:
    """Return a run's decoder."""
    from siglum.search.retriever import Retriever
    from siglum.types import SiglumError

    decoder = Retriever.load(run).decoder
    if decoder is None:
        raise SiglumError(f"{run} has no decoder to measure; train one first.")
    return decoder.eval()


def sizes_of(config: RunConfig) -> tuple[int, ...]:
    """Return the vocabulary of every level, the modality's first."""
    return (NUM_MODALITIES, *config.tokenizer.vocab)


@torch.no_grad()
def make_pool(folder: Path, items: int, queries: int, scale: str, run: str | None, device: str) -> None:
    """Draw a pool, answer some queries by the reference search, and write both into a folder."""
    drawn = _random_pool(items, queries + LEARNT, scale) if run is None else _run_pool(Path(run), items, queries)
    drawn.index.save(folder / "index")
    books = {f"book_{level}": book for level, book in enumerate(drawn.codebooks)}
    arrays = {"vectors": drawn.vector_NS, "queries": torch.cat([drawn.query_QD, drawn.learnt_LD]), **books}
    if drawn.basis_SD is not None:
        arrays["basis"] = drawn.basis_SD
    write_tensors(folder / "pool.safetensors", arrays)
    write_tensors(folder / "reference.safetensors", _answers(drawn, device))
    facts = {"first": drawn.first, "search": as_dict(drawn.config), "learnt": len(drawn.learnt_LD), "scale": scale}
    write_json(folder / "pool.json", {**facts, "run": run, "notes": drawn.notes})


def open_pool(folder: Path) -> Pool:
    """Read what `make_pool` wrote."""
    facts, arrays = read_json(folder / "pool.json"), read_tensors(folder / "pool.safetensors")
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    cut = len(tensors["queries"]) - facts["learnt"]
    found = read_tensors(folder / "reference.safetensors")
    return Pool(
        Index.load(folder / "index"),
        [tensors[f"book_{level}"] for level in range(sum(name.startswith("book_") for name in tensors))],
        facts["first"],
        from_dict(SearchConfig, facts["search"]),
        tensors["queries"][:cut],
        tensors["queries"][cut:],
        {name: [row[row >= 0] for row in rows] for name, rows in found.items()},
        tensors["vectors"],
        tensors.get("basis"),
        (facts["scale"], facts["run"]),
        facts["notes"],
    )


def _answers(pool: Pool, device: str) -> dict[str, np.ndarray]:
    """Return the positions that the reference search finds, -1 where there are no more (Q, K)."""
    scores = {"paper": pool.config, "joint": replace(pool.config, scorer="decoder", normalisation="joint")}
    decoder, books = pool.decoder().to(device), [book.to(device) for book in pool.codebooks]
    answers = {}
    for name, config in scores.items():
        query_QD = pool.query_QD[: CHECKED[name]].to(device)
        scorer = build_scorer(config, books, decoder, pool.first)
        found = search_items(scorer, pool.index, query_QD, beam=config.beam, k=K, batch_size=8)
        answers[name] = _table(found)
    return answers


def _table(found: list[Ranking]) -> np.ndarray:
    table = np.full((len(found), K), -1, np.int64)
    for row, ranking in zip(table, found, strict=True):
        row[: len(ranking)] = ranking.position
    return table


def _random_pool(items: int, queries: int, scale: str) -> Pool:
    config = recipe("pro", scale)
    sizes, dim = sizes_of(config), config.fusion.dim
    generator = torch.Generator().manual_seed(items)
    width = min(SUBSPACE, dim // 2)
    basis_SD = torch.linalg.qr(torch.randn(dim, width, generator=generator)).Q.T.contiguous()
    draw = _Mixture(items, width, generator)
    books = residual_codebooks(draw(SAMPLE), sizes[1:], generator)
    vector_NS = draw(items)
    codes_NT = torch.cat(
        [torch.randint(NUM_MODALITIES, (items, 1), generator=generator), residual_codes(vector_NS, books)], 1
    )
    near_QS = vector_NS[torch.randint(items, (queries,), generator=generator)]
    noise_QS = torch.randn(queries, width, generator=generator) / width**0.5
    query_QD = F.normalize(near_QS + 0.7 * noise_QS, dim=1) @ basis_SD
    return Pool(
        Index.build([str(place) for place in range(items)], codes_NT.numpy(), sizes, "random"),
        [torch.zeros(NUM_MODALITIES, dim), *(book @ basis_SD for book in books)],
        1,
        replace(config.search, scorer="fused", prior=0.0, lookahead=False),
        query_QD[:-LEARNT],
        query_QD[-LEARNT:],
        {},
        vector_NS,
        basis_SD,
        (scale, None),
        [],
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


def nearest(vector_NS: Tensor, book_VS: Tensor) -> Tensor:
    """Return the nearest codeword of every vector (N,)."""
    half_V = book_VS.square().sum(1) / 2
    return torch.cat([torch.addmm(-half_V, part, book_VS.T).argmax(1) for part in vector_NS.split(4096)])


def _run_pool(run: Path, items: int, queries: int) -> Pool:
    """Return some of a run's test items, or all and items made from them, with its test queries."""
    from siglum.pipeline import RunFolder, open_systems
    from siglum.types import SiglumError

    systems = open_systems(RunFolder(run))
    if systems.own is None:
        raise SiglumError(f"{run} has no decoder to measure; train one first.")
    generator = torch.Generator().manual_seed(items)
    rows = torch.as_tensor(systems.rows)
    chosen = rows[torch.randperm(len(rows), generator=generator)[:items]]
    vector_ND, kinds = systems.item_ND[chosen], torch.as_tensor(systems.vectors.items.modality.astype(np.int64))[chosen]
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
    query_QD = systems.own.query_MD[torch.as_tensor(asked)[order]]
    kept = max(1, len(query_QD) - LEARNT) if len(query_QD) <= queries + LEARNT else queries
    notes = [f"{len(rows):,} of the {items:,} items are the run's, the others mixtures of them."] * (items > len(rows))
    plain = {
        "scorer": "fused",
        "normalisation": "level",
        "zscore": False,
        "prior": 0.0,
        "lookahead": False,
        "leaf_order": "pool",
    }
    config = replace(retriever.config, mode="exact", precision="fp32", **plain)  # type: ignore[arg-type]
    changed = [name for name, value in plain.items() if getattr(retriever.config, name) != value]
    notes += [f"the run's search.{name} was set to {plain[name]}, which all engines know." for name in changed]
    return Pool(
        Index.build([str(place) for place in range(items)], codes_NT, retriever.index.sizes, fingerprint(str(run))),
        [book.detach() for book in books],
        0 if quantizer.config.modality_vector else quantizer.first,
        config,
        query_QD[:kept],
        query_QD[kept : kept + LEARNT],
        {},
        vector_ND,
        None,
        ("run", str(run)),
        notes,
    )
