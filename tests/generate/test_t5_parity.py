"""The decoder is T5 v1.0: logits equal those of an independent implementation, at once and step by step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from siglum.config import DecoderConfig
from siglum.generate.decoder import START, CodeDecoder
from siglum.generate.t5 import bucket
from siglum.generate.weights import load_t5, t5_key

transformers = pytest.importorskip("transformers")

SIZES = (3, 11, 7, 20, 5)
SMALL = DecoderConfig(d_model=24, d_ff=40, d_kv=5, heads=3, encoder_layers=2, decoder_layers=2, soft_tokens=4)
T5_SMALL = DecoderConfig(encoder_layers=2, decoder_layers=2, soft_tokens=3)


def reference(config: DecoderConfig) -> torch.nn.Module:
    """Return the other implementation with a random start, biases made large enough to matter."""
    torch.manual_seed(1)
    model = transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=1 + sum(SIZES),
            d_model=config.d_model,
            d_kv=config.d_kv,
            d_ff=config.d_ff,
            num_heads=config.heads,
            num_layers=config.encoder_layers,
            num_decoder_layers=config.decoder_layers,
            decoder_start_token_id=START,
            attn_implementation="eager",
        )
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "relative_attention_bias" in name:
                parameter.normal_()
            if "layer_norm" in name:
                parameter.uniform_(0.5, 1.5)
    return model.eval()


def copy_weights(ours: CodeDecoder, theirs: torch.nn.Module, *, to_ours: bool) -> None:
    """Make the two equal, in either direction; the encoder's bias has no counterpart without encoder layers."""
    other = dict(theirs.named_parameters())
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            key = "shared.weight" if name == "table" else t5_key(name)
            if key is not None and key in other:
                left, right = (parameter, other[key]) if to_ours else (other[key], parameter)
                left.copy_(right)


def inputs(config: DecoderConfig, queries: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """Return queries and codes."""
    generator = torch.Generator().manual_seed(5)
    query = torch.nn.functional.normalize(torch.randn(queries, 16, generator=generator), dim=1)
    codes = torch.stack([torch.randint(v, (queries,), generator=generator) for v in SIZES], 1)
    return query, codes


@torch.no_grad()
def their_logits(ours: CodeDecoder, theirs: torch.nn.Module, query: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """Feed our soft tokens to the other implementation."""
    ids = torch.cat([torch.full((len(codes), 1), START), ours.token_ids(codes)[:, :-1]], 1)
    return theirs(inputs_embeds=ours.soft_tokens(query), decoder_input_ids=ids).logits


@pytest.mark.parametrize("to_ours", [True, False], ids=["theirs to ours", "ours to theirs"])
@pytest.mark.parametrize("encoder_layers", [0, 6])
@pytest.mark.parametrize("soft_tokens", [1, 30])
@torch.no_grad()
def test_logits_agree(soft_tokens: int, encoder_layers: int, to_ours: bool) -> None:
    config = replace(SMALL, soft_tokens=soft_tokens, encoder_layers=encoder_layers)
    ours, theirs = CodeDecoder(config, SIZES, 16).eval(), reference(config)
    copy_weights(ours, theirs, to_ours=to_ours)
    query, codes = inputs(config)
    expected = their_logits(ours, theirs, query, codes)
    torch.testing.assert_close(ours.joint_logits(query, codes), expected, atol=1e-5, rtol=1e-5)
    first = 1
    for level, logits in enumerate(ours(query, codes)):
        torch.testing.assert_close(logits, expected[:, level, first : first + SIZES[level]], atol=1e-5, rtol=1e-5)
        first += SIZES[level]


@pytest.mark.parametrize("soft_tokens", [1, 3])
@torch.no_grad()
def test_logits_agree_at_the_sizes_of_t5_small(soft_tokens: int) -> None:
    config = replace(T5_SMALL, soft_tokens=soft_tokens)
    ours, theirs = CodeDecoder(config, SIZES, 16).eval(), reference(config)
    copy_weights(ours, theirs, to_ours=True)
    query, codes = inputs(config)
    expected = their_logits(ours, theirs, query, codes)
    torch.testing.assert_close(ours.joint_logits(query, codes), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("soft_tokens", [1, 4])
@torch.no_grad()
def test_every_step_agrees(soft_tokens: int) -> None:
    config = replace(SMALL, soft_tokens=soft_tokens)
    ours, theirs = CodeDecoder(config, SIZES, 16).eval(), reference(config)
    copy_weights(ours, theirs, to_ours=True)
    query, codes = inputs(config)
    expected = their_logits(ours, theirs, query, codes)
    state = ours.start(query)
    for level, first in enumerate(ours.token_offset_L.tolist()):
        hidden = ours.step(state, codes[:, level - 1] if level else None, level)
        mine = slice(first, first + SIZES[level])
        torch.testing.assert_close(ours.level_logits(hidden, level), expected[:, level, mine], atol=1e-5, rtol=1e-5)
        joint = expected[:, level].log_softmax(-1)[:, mine]
        torch.testing.assert_close(ours.joint_log_softmax(hidden, level), joint, atol=1e-5, rtol=1e-5)


def test_gradients_agree() -> None:
    config = replace(SMALL, dropout=0.0)
    ours, theirs = CodeDecoder(config, SIZES, 16), reference(config)
    copy_weights(ours, theirs, to_ours=True)
    query, codes = inputs(config)
    ours.joint_logits(query, codes).square().mean().backward()
    ids = torch.cat([torch.full((len(codes), 1), START), ours.token_ids(codes)[:, :-1]], 1)
    soft = ours.soft_tokens(query).detach()
    theirs(inputs_embeds=soft, decoder_input_ids=ids).logits.square().mean().backward()
    other = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        key = "shared.weight" if name == "table" else t5_key(name)
        if key is not None:
            torch.testing.assert_close(
                parameter.grad, other[key].grad, atol=1e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
            )


@pytest.mark.parametrize("bidirectional", [True, False])
def test_buckets_agree_at_any_distance(bidirectional: bool) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    distance = torch.arange(-300, 301)
    expected = T5Attention._relative_position_bucket(distance, bidirectional, 32, 128)
    assert torch.equal(bucket(distance, bidirectional=bidirectional), expected)


@torch.no_grad()
def test_a_saved_model_is_loaded_whole(tmp_path: Path) -> None:
    theirs = reference(SMALL)
    theirs.save_pretrained(tmp_path)
    ours = CodeDecoder(SMALL, SIZES, 16).eval()
    assert sorted(load_t5(ours, tmp_path)) == ["soft", "soft_bias", "table"]
    ours.table.copy_(theirs.shared.weight)
    query, codes = inputs(SMALL)
    expected = their_logits(ours, theirs, query, codes)
    torch.testing.assert_close(ours.joint_logits(query, codes), expected, atol=1e-5, rtol=1e-5)
