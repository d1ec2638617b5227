"""What holds of the decoder whatever its weights: causality, batching, row selection, gradients, starts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from siglum.config import DecoderConfig
from siglum.generate.decoder import CodeDecoder, DecoderState
from siglum.generate.t5 import Rows, dropout
from siglum.types import SiglumError

SIZES = (3, 6, 5, 9)
CONFIG = DecoderConfig(
    d_model=16, d_ff=32, d_kv=4, heads=2, encoder_layers=1, decoder_layers=2, soft_tokens=3, dropout=0.1
)
SOFT_TOKENS = pytest.mark.parametrize("soft_tokens", [1, 3])


def make(soft_tokens: int = 3, seed: int = 0, **changes: object) -> CodeDecoder:
    """Return a small decoder in evaluation mode."""
    config = replace(CONFIG, soft_tokens=soft_tokens, **changes)
    return CodeDecoder(config, SIZES, 8, torch.Generator().manual_seed(seed)).eval()


def batch(queries: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return queries (Q, 8) and codes (Q, L)."""
    generator = torch.Generator().manual_seed(seed)
    query = torch.nn.functional.normalize(torch.randn(queries, 8, generator=generator), dim=1)
    return query, torch.stack([torch.randint(v, (queries,), generator=generator) for v in SIZES], 1)


def close(left: torch.Tensor, right: torch.Tensor) -> None:
    """Compare to 1e-5."""
    torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-5)


@SOFT_TOKENS
def test_shapes(soft_tokens: int) -> None:
    decoder, (query, codes) = make(soft_tokens), batch(5)
    assert decoder.encode(query).shape == (5, soft_tokens, 16)
    assert [tuple(logits.shape) for logits in decoder(query, codes)] == [(5, v) for v in SIZES]
    assert decoder.joint_logits(query, codes).shape == (5, len(SIZES), 1 + sum(SIZES))


@SOFT_TOKENS
def test_level_logits_are_the_joint_logits_of_their_tokens(soft_tokens: int) -> None:
    decoder, (query, codes) = make(soft_tokens), batch(5)
    joint, ids = decoder.joint_logits(query, codes), decoder.token_ids(codes)
    for level, logits in enumerate(decoder(query, codes)):
        close(logits.gather(1, codes[:, level, None]), joint[:, level].gather(1, ids[:, level, None]))


@SOFT_TOKENS
@pytest.mark.parametrize("changed", range(len(SIZES)))
def test_a_code_changes_later_levels_only(changed: int, soft_tokens: int) -> None:
    decoder, (query, codes) = make(soft_tokens), batch(4)
    other = codes.clone()
    other[:, changed] = (other[:, changed] + 1) % SIZES[changed]
    for level, (before, after) in enumerate(zip(decoder(query, codes), decoder(query, other), strict=True)):
        assert torch.equal(before, after) == (level <= changed)


@SOFT_TOKENS
def test_the_query_changes_every_level(soft_tokens: int) -> None:
    decoder, (query, codes) = make(soft_tokens), batch(4)
    for before, after in zip(decoder(query, codes), decoder(query.flip(0), codes), strict=True):
        assert not torch.allclose(before, after, atol=1e-3)


@SOFT_TOKENS
@torch.no_grad()
def test_batching_does_not_matter(soft_tokens: int) -> None:
    decoder, (query, codes) = make(soft_tokens), batch(7)
    together = decoder.joint_logits(query, codes)
    apart = torch.cat([decoder.joint_logits(query[i : i + 1], codes[i : i + 1]) for i in range(7)])
    close(together, apart)


@SOFT_TOKENS
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_selected_rows_equal_teacher_forcing(soft_tokens: int, data: st.DataObject) -> None:
    """Grow random ragged beams; every surviving row must score its own prefix as teacher forcing does."""
    decoder, (query, _) = make(soft_tokens), batch(3)
    state, token, prefix = decoder.start(query), None, torch.zeros(3, 0, dtype=torch.long)
    for level, size in enumerate(SIZES):
        hidden = decoder.step(state, token, level)
        unread = torch.zeros(len(prefix), len(SIZES) - level, dtype=torch.long)
        with torch.no_grad():
            joint = decoder.joint_logits(query[state.query_R], torch.cat([prefix, unread], 1))[:, level]
        mine = slice(int(decoder.token_offset_L[level]), int(decoder.token_offset_L[level]) + size)
        close(decoder.level_logits(hidden, level), joint[:, mine])
        close(decoder.joint_log_softmax(hidden, level), joint.log_softmax(-1)[:, mine])
        rows = st.lists(st.tuples(st.integers(0, len(prefix) - 1), st.integers(0, size - 1)), min_size=1, max_size=6)
        parent, token = torch.tensor(data.draw(rows)).unbind(1)
        state, prefix = state.select(parent), torch.cat([prefix[parent], token[:, None]], 1)


@SOFT_TOKENS
def test_selecting_twice_is_selecting_once(soft_tokens: int) -> None:
    decoder, (query, _) = make(soft_tokens), batch(4)
    state = decoder.start(query)
    decoder.step(state, None, 0)
    first, second = torch.tensor([3, 1, 1, 0, 2]), torch.tensor([4, 0, 2])
    token = torch.tensor([1, 0, 2])
    twice = decoder.step(state.select(first).select(second), token, 1)
    once = decoder.step(state.select(first[second]), token, 1)
    assert torch.equal(twice, once)


@SOFT_TOKENS
def test_no_rows_may_be_left(soft_tokens: int) -> None:
    decoder, (query, _) = make(soft_tokens), batch(2)
    state = decoder.start(query)
    decoder.step(state, None, 0)
    none = torch.zeros(0, dtype=torch.long)
    assert decoder.step(state.select(none), none, 1).shape == (0, 16)


def test_selecting_leaves_the_memory_where_it_is() -> None:
    decoder, (query, _) = make(3), batch(2)
    state = decoder.start(query)
    decoder.step(state, None, 0)
    wide = state.select(torch.zeros(50, dtype=torch.long))
    assert all(
        a is b for mine, other in zip(wide.kept, state.kept, strict=True) for a, b in zip(mine, other, strict=True)
    )


@given(st.lists(st.integers(0, 4), max_size=20))
def test_rows_are_grouped_without_loss(queries: list[int]) -> None:
    rows = Rows.of(torch.tensor(queries, dtype=torch.long), 5)
    x = torch.randn(len(queries), 1, 3)
    assert torch.equal(rows.ungroup(rows.group(x)), x)
    assert rows.width == max((queries.count(q) for q in range(5)), default=0)


@SOFT_TOKENS
@pytest.mark.parametrize("joint", [False, True])
def test_training_reaches_every_trained_parameter(soft_tokens: int, joint: bool) -> None:
    decoder, (query, codes) = make(soft_tokens).train(), batch(16)
    if joint:
        decoder.joint_logits(query, codes).square().sum().backward()
    else:
        sum(logits.square().sum() for logits in decoder(query, codes)).backward()
    for name, parameter in decoder.named_parameters():
        reached = parameter.grad is not None and bool(parameter.grad.any())
        assert reached == parameter.requires_grad, name


def test_only_what_a_lone_soft_token_leaves_without_effect_is_not_trained() -> None:
    assert all(p.requires_grad for p in make(3).parameters())
    decoder, (query, codes) = make(1), batch(4)
    before = decoder.joint_logits(query, codes)
    fixed = {name: p for name, p in decoder.named_parameters() if not p.requires_grad}
    assert "decoder.blocks.0.cross_attention.q" in fixed
    with torch.no_grad():
        for parameter in fixed.values():
            parameter.normal_()
    assert torch.equal(decoder.joint_logits(query, codes), before)


@SOFT_TOKENS
def test_dropout_acts_in_training_and_averages_out(soft_tokens: int) -> None:
    decoder, (query, codes) = make(soft_tokens, dropout=0.05).train(), batch(1)
    torch.manual_seed(0)
    with torch.no_grad():
        many = decoder.joint_logits(query.expand(4000, -1), codes.expand(4000, -1))
        assert many.std(0).min() > 1e-3
        decoder.eval()
        close(decoder.joint_logits(query, codes), decoder.joint_logits(query, codes))
        assert float((many.mean(0) - decoder.joint_logits(query, codes)[0]).abs().mean()) < 0.3


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_dropout_zeroes_its_share_and_keeps_the_mean(share: float) -> None:
    torch.manual_seed(0)
    dropped = dropout(torch.ones(301, 333), share, True)
    assert dropped.unique().tolist() == pytest.approx([0.0, 1 / (1 - share)])
    assert float(dropped.mean()) == pytest.approx(1.0, abs=0.02)
    # Neighbours share a draw of 64 bits, but not its bits.
    gone = (dropped == 0).float().flatten()[:100_000].view(-1, 4)
    assert float(torch.corrcoef(gone.T).fill_diagonal_(0).abs().max()) < 0.03


def test_dropout_of_a_lone_key_switches_heads_off() -> None:
    attention = make(1, dropout=0.5).decoder.blocks[0].cross_attention.train()
    memory, x = torch.randn(2, 1, 16), torch.randn(2, 500, 16)
    kept = attention.keep(memory)
    share = kept.k
    possible = torch.stack([a * share[:, 0] + b * share[:, 1] for a in (0, 2) for b in (0, 2)], 1)
    apart = attention.attend(x, kept)[:, :, None] - possible[:, None]
    nearest = apart.detach().abs().sum(-1).min(-1)
    assert float(nearest.values.max()) < 1e-4
    assert all(len(row.unique()) == 4 for row in nearest.indices)


def test_the_start_follows_the_generator_alone() -> None:
    torch.manual_seed(1)
    left = make(seed=7).state_dict()
    torch.manual_seed(2)
    before = torch.get_rng_state()
    right, other = make(seed=7).state_dict(), make(seed=8).state_dict()
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert not torch.equal(left["table"], other["table"])


def test_the_start_has_the_spread_of_t5() -> None:
    config = replace(CONFIG, d_model=64, d_ff=96, d_kv=8, heads=4)
    decoder = CodeDecoder(config, (400, 400), 32)
    block = decoder.decoder.blocks[0]
    spread = {
        decoder.table: 1.0,
        block.self_attention.q: (64 * 8) ** -0.5,
        block.self_attention.k: 64**-0.5,
        block.self_attention.v: 64**-0.5,
        block.self_attention.o: 32**-0.5,
        block.feed_forward.wi: 64**-0.5,
        block.feed_forward.wo: 96**-0.5,
    }
    for parameter, std in spread.items():
        assert float(parameter.detach().std()) == pytest.approx(std, rel=0.06)
    unit = torch.nn.functional.normalize(torch.randn(200, 32), dim=1)
    assert float(decoder.soft_tokens(unit).detach().std()) == pytest.approx(1.0, rel=0.1)


def test_codeword_start_keeps_neighbourhoods() -> None:
    decoder = CodeDecoder(replace(CONFIG, d_model=64), (2, 100, 50), 8)
    before = decoder.table.detach().clone()
    generator = torch.Generator().manual_seed(3)
    codebook, deeper = torch.randn(100, 48, generator=generator) * 5, torch.randn(50, 48, generator=generator)
    codebook[1] = codebook[0] * 2 + 0.1
    codebook[2] = 0.0
    decoder.initialise_from_codewords([None, codebook, deeper], generator)
    rows = decoder.table.detach()[3:103]
    assert torch.equal(decoder.table[:3], before[:3])
    assert torch.equal(rows[2], before[5])
    assert float(rows.std()) == pytest.approx(1.0, rel=0.02)
    distance = torch.cdist(rows, rows).fill_diagonal_(torch.inf)
    assert int(distance[0].argmin()) == 1
    filled = codebook[torch.arange(100) != 2]
    cosine = torch.nn.functional.normalize(filled, dim=1) @ torch.nn.functional.normalize(filled, dim=1).T
    embedded = rows[torch.arange(100) != 2]
    embedded = torch.nn.functional.normalize(embedded, dim=1)
    pairs = torch.stack([cosine.flatten(), (embedded @ embedded.T).flatten()])
    assert float(torch.corrcoef(pairs)[0, 1]) > 0.6


def test_what_does_not_fit_is_refused() -> None:
    decoder, (query, codes) = make(), batch(2)
    with pytest.raises(SiglumError, match=r"\(Q, 8\)"):
        decoder(query[:, :5], codes)
    with pytest.raises(SiglumError, match=r"\(2, 4\)"):
        decoder(query, codes[:, :3])
    with pytest.raises(SiglumError, match="4 levels"):
        decoder.initialise_from_codewords([None], torch.Generator())
    with pytest.raises(SiglumError, match="level 1 has 6 codes"):
        decoder.initialise_from_codewords([None, torch.zeros(5, 8), None, None], torch.Generator())
    with pytest.raises(SiglumError, match="sizes"):
        CodeDecoder(CONFIG, (), 8)
    with pytest.raises(SiglumError, match="evaluation mode"):
        decoder.train().start(query)


@pytest.mark.parametrize(("token", "level"), [(None, 1), (torch.zeros(2, dtype=torch.long), 0), (None, 4)])
def test_a_step_out_of_order_is_refused(token: torch.Tensor | None, level: int) -> None:
    decoder, (query, _) = make(), batch(2)
    state: DecoderState = decoder.start(query)
    with pytest.raises(SiglumError, match="level"):
        decoder.step(state, token, level)
