"""UniIR's BLIP-FF: tiny random weights under BLIP's key names against a forward written from the formulas."""

from __future__ import annotations

import string
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import (
    OPENAI_MEAN,
    OPENAI_STD,
    assert_half_precisions_are_near,
    assert_rows_do_not_depend_on_the_batch,
    attend,
    dense,
    norm,
    normalise,
    pictures,
    randoms,
)
from torch import Tensor
from torch.nn.functional import gelu

from siglum.encode import uniir_blip
from siglum.encode.base import PairEncoder
from siglum.types import SiglumError

transformers = pytest.importorskip("transformers")
SEES, READS, LAYERS, PATCH, GRID = 64, 128, 2, 8, 3
LETTERS = string.ascii_lowercase
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]


def blip_state() -> dict[str, Tensor]:
    shapes: dict[str, tuple[int, ...]] = {
        "visual_encoder.cls_token": (1, 1, SEES),
        "visual_encoder.pos_embed": (1, 1 + GRID**2, SEES),
        "visual_encoder.patch_embed.proj.weight": (SEES, 3, PATCH, PATCH),
        "visual_encoder.patch_embed.proj.bias": (SEES,),
        "visual_encoder.norm.weight": (SEES,),
        "visual_encoder.norm.bias": (SEES,),
        "text_encoder.embeddings.word_embeddings.weight": (len(WORDS) + 2, READS),
        "text_encoder.embeddings.position_embeddings.weight": (120, READS),
        "text_encoder.embeddings.LayerNorm.weight": (READS,),
        "text_encoder.embeddings.LayerNorm.bias": (READS,),
        "text_encoder.pooler.dense.weight": (READS, READS),
        "text_encoder.pooler.dense.bias": (READS,),
        "visual_encoder_m.norm.weight": (SEES,),
        "query_queue": (4, 6),
    }
    layers = [
        ("visual_encoder.blocks.{}.attn.qkv", 3 * SEES, SEES),
        ("visual_encoder.blocks.{}.attn.proj", SEES, SEES),
        ("visual_encoder.blocks.{}.mlp.fc1", 4 * SEES, SEES),
        ("visual_encoder.blocks.{}.mlp.fc2", SEES, 4 * SEES),
        ("visual_encoder.blocks.{}.norm1", SEES, 0),
        ("visual_encoder.blocks.{}.norm2", SEES, 0),
        ("text_encoder.encoder.layer.{}.intermediate.dense", 4 * READS, READS),
        ("text_encoder.encoder.layer.{}.output.dense", READS, 4 * READS),
        ("text_encoder.encoder.layer.{}.output.LayerNorm", READS, 0),
    ]
    for part, into in (("attention", READS), ("crossattention", SEES)):
        layers += [(f"text_encoder.encoder.layer.{{}}.{part}.self.{one}", READS, into) for one in ("key", "value")]
        layers += [
            (f"text_encoder.encoder.layer.{{}}.{part}.{one}", READS, READS) for one in ("self.query", "output.dense")
        ]
        layers += [(f"text_encoder.encoder.layer.{{}}.{part}.output.LayerNorm", READS, 0)]
    for name, out, into in layers:
        for layer in range(LAYERS):
            shapes[f"{name.format(layer)}.weight"] = (out, into) if into else (out,)
            shapes[f"{name.format(layer)}.bias"] = (out,)
    return randoms(shapes)


STATE = blip_state()


def reference_patches(pixels: Tensor) -> Tensor:
    """BLIP's vision transformer: norms first, with a margin of 1e-6."""
    proj = "visual_encoder.patch_embed.proj"
    patches = torch.nn.functional.conv2d(pixels, STATE[f"{proj}.weight"], STATE[f"{proj}.bias"], PATCH)
    first = STATE["visual_encoder.cls_token"].expand(len(pixels), 1, SEES)
    rows = torch.cat([first, patches.flatten(2).transpose(1, 2)], 1) + STATE["visual_encoder.pos_embed"]
    for layer in range(LAYERS):
        block = f"visual_encoder.blocks.{layer}."
        packed = dense(norm(rows, STATE, f"{block}norm1", 1e-6), STATE, f"{block}attn.qkv")
        rows = rows + dense(attend(*packed.chunk(3, -1), SEES // 64), STATE, f"{block}attn.proj")
        wide = gelu(dense(norm(rows, STATE, f"{block}norm2", 1e-6), STATE, f"{block}mlp.fc1"))
        rows = rows + dense(wide, STATE, f"{block}mlp.fc2")
    return norm(rows, STATE, "visual_encoder.norm", 1e-6)


def reference(texts: list[str], pixels: Tensor) -> Tensor:
    """The pooled first token of BERT, which attends to the text and then to the patches in every layer."""
    ids = [[2, *(WORDS.index(letter) for letter in text), 3] for text in texts]
    width = max(map(len, ids))
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in ids])
    mask = torch.where(tokens == 0, -torch.inf, 0.0)[:, None, None, :]
    patches, root = reference_patches(pixels), "text_encoder.embeddings"
    rows = STATE[f"{root}.word_embeddings.weight"][tokens] + STATE[f"{root}.position_embeddings.weight"][:width]
    rows = norm(rows, STATE, f"{root}.LayerNorm", 1e-12)
    for layer in range(LAYERS):
        base = f"text_encoder.encoder.layer.{layer}."
        for part, other, hide in (("attention", None, mask), ("crossattention", patches, None)):
            source = rows if other is None else other
            key, value = (dense(source, STATE, f"{base}{part}.self.{one}") for one in ("key", "value"))
            mixed = attend(dense(rows, STATE, f"{base}{part}.self.query"), key, value, READS // 64, hide)
            rows = rows + dense(mixed, STATE, f"{base}{part}.output.dense")
            rows = norm(rows, STATE, f"{base}{part}.output.LayerNorm", 1e-12)
        wide = gelu(dense(rows, STATE, f"{base}intermediate.dense"))
        rows = norm(rows + dense(wide, STATE, f"{base}output.dense"), STATE, f"{base}output.LayerNorm", 1e-12)
    return dense(rows[:, 0], STATE, "text_encoder.pooler.dense").tanh()


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    vocab = {word: place for place, word in enumerate(WORDS)}
    transformers.BertTokenizer(vocab=vocab).save_pretrained(tmp_path)
    torch.save({"model": STATE, "epoch": 1, "scaler": {}}, tmp_path / "blip_ff.pth")
    return str(tmp_path / "blip_ff.pth")


def test_pairs_are_those_of_the_formulas(checkpoint: str) -> None:
    encoder = uniir_blip.build(checkpoint)
    assert isinstance(encoder, PairEncoder) and encoder.name == f"uniir-blip-ff:{checkpoint}" and encoder.joint
    assert (encoder.image_dim, encoder.text_dim, encoder.picture_size, encoder.framing) == (128, 128, 24, "whole")
    shown = pictures(2, 24)
    seen = normalise(shown, OPENAI_MEAN, OPENAI_STD)
    rows = encoder.encode_pairs(["A b", None, "c", "d e f"], [shown[0], shown[1], None, shown[1]])
    expected = reference(["ab", "", "c", "def"], torch.stack([seen[0], seen[1], torch.zeros_like(seen[0]), seen[1]]))
    np.testing.assert_allclose(rows, expected, atol=1e-5)
    np.testing.assert_allclose(encoder.encode_texts(["c"])[0], rows[2], atol=1e-5)
    np.testing.assert_allclose(encoder.encode_images(shown)[1], rows[1], atol=1e-5)
    assert np.abs(rows[1] - rows[3]).max() > 1e-3


def test_half_precisions_are_near(checkpoint: str) -> None:
    assert_half_precisions_are_near(uniir_blip.build, checkpoint)


def test_rows_do_not_depend_on_the_batch(checkpoint: str) -> None:
    assert_rows_do_not_depend_on_the_batch(uniir_blip.build(checkpoint), uniir_blip.build(checkpoint, batch_size=1))
    texts, shown = ["a", None, "b c", "d"], [None, *pictures(2, 24), None]
    together = uniir_blip.build(checkpoint, batch_size=3).encode_pairs(texts, shown)
    apart = uniir_blip.build(checkpoint, batch_size=1).encode_pairs(texts, shown)
    np.testing.assert_allclose(together, apart, atol=1e-5)


def test_texts_are_cut_at_100_tokens(checkpoint: str) -> None:
    rows = uniir_blip.build(checkpoint).encode_texts(["a " * 98, "a " * 98 + "b c", "a " * 97])
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-6)
    assert np.abs(rows[0] - rows[2]).max() > 1e-5


def test_pairs_of_nothing_and_odd_lists_are_refused(checkpoint: str) -> None:
    encoder = uniir_blip.build(checkpoint)
    with pytest.raises(SiglumError, match="neither text nor picture"):
        encoder.encode_pairs(["a", None], [None, None])
    with pytest.raises(SiglumError, match="2 texts but 1 pictures"):
        encoder.encode_pairs(["a", "b"], [None])


@pytest.mark.parametrize(
    "key", ["visual_encoder.pos_embed", "visual_encoder.blocks.1.attn.qkv.bias", "text_encoder.pooler.dense.weight"]
)
def test_missing_weights_are_named(checkpoint: str, key: str) -> None:
    torch.save({"model": {name: value for name, value in STATE.items() if name != key}}, checkpoint)
    with pytest.raises(SiglumError, match=f"lacks the weights '{key}'"):
        uniir_blip.build(checkpoint)
