"""All engines answer decoders that read histories of any length, and give what the reference search gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from siglum.config import DecoderConfig, HistoryConfig, SearchConfig
from siglum.generate.decoder import CodeDecoder
from siglum.generate.histories import HistoryBatch
from siglum.index import Index
from siglum.search.engine import Engine
from siglum.search.query import EncodedQuery
from siglum.search.ragged import FastSearch
from siglum.search.static import GraphSearch
from siglum.types import SiglumError

SIZES, ITEMS, DIM = (6, 7, 5, 4), 90, 6
CONFIG = DecoderConfig(
    d_model=16, d_ff=32, d_kv=8, heads=2, encoder_layers=2, decoder_layers=2, history=HistoryConfig(items=5, users=3)
)


class Asked:
    """A random index, decoder and histories."""

    def __init__(self, seed: int = 0, queries: int = 9, items: int = ITEMS) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.codes = torch.stack([torch.randint(size, (items,), generator=generator) for size in SIZES], 1)
        self.decoder = CodeDecoder(CONFIG, SIZES, DIM, generator).eval()
        self.books = [0.5 * torch.randn(size, DIM, generator=generator) for size in SIZES]
        self.index = Index.build([f"x{i}" for i in range(items)], self.codes.numpy(), SIZES, "tok")
        rows = torch.randint(items, (queries, 5), generator=generator)
        self.length = torch.randint(0, 6, (queries, 1), generator=generator)
        self.rows = torch.where(torch.arange(5) < self.length, rows, -1)
        self.user = torch.randint(-1, 3, (queries,), generator=generator)
        self.vector = torch.nn.functional.normalize(torch.randn(queries, DIM, generator=generator), dim=1)
        self.engine = Engine(self.books, self.decoder, self.index)

    @torch.no_grad()
    def query(self, part: slice = slice(None), width: int = 5) -> EncodedQuery:
        batch = HistoryBatch.of(self.codes, self.rows[part, :width], self.user[part])
        return EncodedQuery(*self.decoder.read(batch)[:1], self.vector[part], self.decoder.read(batch)[1])


def assert_same(found, wanted) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.position.tolist() == other.position.tolist()
        np.testing.assert_allclose(one.score, other.score, atol=2e-4)


CHANGES = [
    {},
    {"scorer": "decoder"},
    {"omega": 3.0, "lookahead": True},
    {"mode": "renormalised"},
    {"beam": 90},
    {"scorer": "decoder", "beam": 2, "batch_size": 2},
]


@pytest.mark.parametrize("changed", CHANGES)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_fast_engine_answers_histories_as_the_reference_does(changed, seed: int) -> None:
    asked, config = Asked(seed), SearchConfig(**{"beam": 7, "omega": 2.0, **changed})
    wanted = asked.engine.rank(asked.query(), replace(config, engine="reference"), k=20)
    assert isinstance(asked.engine.fast(config, asked.query()), FastSearch)
    assert_same(asked.engine.rank(asked.query(), config, k=20), wanted)


@pytest.mark.parametrize("changed", [one for one in CHANGES if "mode" not in one])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_static_engine_answers_histories_as_the_reference_does(changed, seed: int) -> None:
    asked, config = Asked(seed), SearchConfig(**{"beam": 7, "omega": 2.0, **changed})
    wanted = asked.engine.rank(asked.query(), replace(config, engine="reference"), k=20)
    static = GraphSearch(asked.decoder, asked.books, asked.index, config, 0, "cpu")
    assert_same(static.search(asked.query(), k=20), wanted)
    longest = int(asked.length.max())
    assert_same(static.search(asked.query(width=longest), k=20), wanted)
    assert asked.engine.fits_static(config, asked.query())
    wide = EncodedQuery(torch.zeros(1, 99, 16), asked.vector[:1])
    assert not asked.engine.fits_static(config, wide)
    with pytest.raises(SiglumError, match="at most 21 tokens, not 99"):
        static.search(wide, k=3)


def test_rows_that_only_fill_a_batch_are_numbers() -> None:
    asked = Asked()
    static = GraphSearch(asked.decoder, asked.books, asked.index, SearchConfig(beam=5), 0, "cpu")
    filled = static.asked.unpack(torch.zeros(2, static.width))
    assert filled.mask_QS is not None and filled.mask_QS.sum(1).tolist() == [1, 1]
    found = static.engine.find(torch.zeros(2, static.width), static.plan(2), 3)
    assert bool(found.score_QK.isfinite().all())


def test_a_history_is_read_alone_as_in_a_batch_of_longer_ones() -> None:
    asked = Asked()
    together = asked.query()
    for row, length in enumerate(asked.length[:, 0].tolist()):
        alone = asked.query(slice(row, row + 1), max(length, 1))
        tokens = 1 + length * len(SIZES)
        torch.testing.assert_close(alone.states[0, :tokens], together.states[row, :tokens], atol=1e-5, rtol=1e-4)
        assert together.mask_QS is not None and together.mask_QS[row].tolist() == [True] * tokens + [False] * (
            21 - tokens
        )


def test_what_stands_where_nothing_is_changes_nothing() -> None:
    asked = Asked()
    other = asked.codes.clone()
    other[0] = (other[0] + 1) % torch.tensor(SIZES)  # padding reads the codes of row 0
    keep = ~(asked.rows == 0).any(1)
    for codes in (asked.codes, other):
        batch = HistoryBatch.of(codes, asked.rows[keep], asked.user[keep])
        with torch.no_grad():
            read = asked.decoder.read(batch)
        logits = asked.decoder(read, torch.zeros(len(batch.mask_QH), 4, dtype=torch.long))
        aimed = asked.decoder.aimed(read)
        if codes is asked.codes:
            first, aim = logits, aimed
    for one, two in zip(first, logits, strict=True):
        torch.testing.assert_close(one, two)
    torch.testing.assert_close(aim, aimed)


def test_teacher_forcing_and_steps_agree_on_histories() -> None:
    asked = Asked()
    query = asked.query()
    codes = asked.codes[torch.arange(len(query)) * 3]
    batch = HistoryBatch.of(asked.codes, asked.rows, asked.user)
    with torch.no_grad():
        logits = asked.decoder(asked.decoder.read(batch), codes)
    state = asked.decoder.start(query.states, query.mask_QS)
    for level in range(len(SIZES)):
        token = None if level == 0 else codes[:, level - 1]
        found = asked.decoder.level_logits(asked.decoder.step(state, token, level), level)
        torch.testing.assert_close(found, logits[level], atol=1e-4, rtol=1e-4)


def test_vectors_and_histories_are_not_mixed_up() -> None:
    asked = Asked()
    with pytest.raises(SiglumError, match="reads histories of items, not vectors"):
        asked.engine.rank(asked.vector, SearchConfig(beam=3), k=3)
    plain = CodeDecoder(replace(CONFIG, history=HistoryConfig()), SIZES, DIM).eval()
    with pytest.raises(SiglumError, match="reads vectors, not histories"):
        plain.read(HistoryBatch.of(asked.codes, asked.rows))
