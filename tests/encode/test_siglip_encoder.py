"""SigLIP 2 of a fixed resolution, on a tiny random model saved as the real ones are."""

from __future__ import annotations

import json
import string
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import assert_half_precisions_are_near, assert_rows_do_not_depend_on_the_batch, normalise, pictures

from siglum.encode import siglip
from siglum.encode.base import Encoder
from siglum.types import SiglumError

transformers = pytest.importorskip("transformers")
MARKS = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "▁"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("siglip")
    vocab = {token: place for place, token in enumerate([*MARKS, *string.ascii_lowercase])}
    transformers.Siglip2Tokenizer(vocab=vocab, merges=[]).save_pretrained(root)
    size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.SiglipConfig(
        text_config=size | {"vocab_size": len(vocab), "projection_size": 32},
        vision_config=size | {"image_size": 32, "patch_size": 16},
    )
    torch.manual_seed(0)
    model = transformers.SiglipModel(config)
    for weight in model.parameters():
        weight.data += 0.05 * torch.randn_like(weight)
    model.save_pretrained(root)
    return root


def test_features_are_those_the_model_compares(folder: Path) -> None:
    encoder, model = siglip.build(str(folder)), transformers.SiglipModel.from_pretrained(folder).eval()
    assert isinstance(encoder, Encoder) and encoder.name == f"siglip2:{folder}"
    assert (encoder.image_dim, encoder.text_dim, encoder.picture_size, encoder.framing) == (32, 32, 32, "whole")
    texts = ["Star Ring", "a"]
    # Lower-cased letters, then padding to the end, which the model reads without a mask.
    ids = [[MARKS.index("▁") if c == " " else ord(c) - ord("a") + len(MARKS) for c in text.lower()] for text in texts]
    tokens = torch.tensor([row + [0] * (64 - len(row)) for row in ids])
    shown = pictures(2, 32)
    with torch.no_grad():
        found = model(input_ids=tokens, pixel_values=normalise(shown, [0.5] * 3, [0.5] * 3))
    for rows, unit in (
        (encoder.encode_texts(texts), found.text_embeds),
        (encoder.encode_images(shown), found.image_embeds),
    ):
        np.testing.assert_allclose(rows / np.linalg.norm(rows, axis=1, keepdims=True), unit.numpy(), atol=1e-5)


def test_half_precisions_are_near(folder: Path) -> None:
    assert_half_precisions_are_near(siglip.build, str(folder))


def test_rows_do_not_depend_on_the_batch(folder: Path) -> None:
    assert_rows_do_not_depend_on_the_batch(siglip.build(str(folder)), siglip.build(str(folder), batch_size=1))


def test_case_does_not_matter_and_texts_are_cut_at_64(folder: Path) -> None:
    rows = siglip.build(str(folder)).encode_texts(["A STAR", "a star", "b" * 64, "b" * 70, "b" * 63])
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-6)
    np.testing.assert_allclose(rows[2], rows[3], atol=1e-6)
    assert np.abs(rows[2] - rows[4]).max() > 1e-4


def test_naflex_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "siglip2"}))
    with pytest.raises(SiglumError, match=r"'siglip2', but must be 'siglip'.*NaFlex"):
        siglip.build(str(tmp_path))
