"""CLIP through transformers, on a tiny random model saved as the real ones are."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import (
    OPENAI_MEAN,
    OPENAI_STD,
    TEXTS,
    assert_half_precisions_are_near,
    assert_rows_do_not_depend_on_the_batch,
    normalise,
    pictures,
)
from tiny_models import save_clip_tokenizer as save_tokenizer

from siglum.encode import clip
from siglum.encode.base import Encoder
from siglum.types import SiglumError

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("clip")
    tokenizer = save_tokenizer(root)
    size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    marks = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = transformers.CLIPConfig(
        text_config=size | marks | {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.eos_token_id},
        vision_config=size | {"image_size": 32, "patch_size": 16},
        projection_dim=24,
    )
    torch.manual_seed(0)
    model = transformers.CLIPModel(config)
    for weight in model.parameters():
        weight.data += 0.05 * torch.randn_like(weight)
    model.save_pretrained(root)
    return root


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def test_it_keeps_the_protocol(folder: Path) -> None:
    encoder = clip.build(str(folder))
    assert isinstance(encoder, Encoder)
    assert encoder.name == f"clip:{folder}" and encoder.joint
    assert (encoder.image_dim, encoder.text_dim, encoder.picture_size, encoder.framing) == (24, 24, 32, "centre")


def test_features_are_those_the_model_compares(folder: Path) -> None:
    encoder, model = clip.build(str(folder)), transformers.CLIPModel.from_pretrained(folder).eval()
    tokens = transformers.AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="pt")
    shown = pictures(3, 32)
    with torch.no_grad():
        found = model(**tokens, pixel_values=normalise(shown, OPENAI_MEAN, OPENAI_STD))
    for rows, unit in (
        (encoder.encode_texts(TEXTS), found.text_embeds),
        (encoder.encode_images(shown), found.image_embeds),
    ):
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        assert abs(norms - 1).max() > 0.01
        np.testing.assert_allclose(rows / norms, unit.numpy(), atol=1e-5)


def test_rows_do_not_depend_on_the_batch(folder: Path) -> None:
    assert_rows_do_not_depend_on_the_batch(clip.build(str(folder)), clip.build(str(folder), batch_size=1))


def test_texts_are_cut_at_77_tokens(folder: Path) -> None:
    rows = clip.build(str(folder)).encode_texts(["a " * 75, "a " * 75 + "b c d", "a " * 74])
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-6)
    assert np.abs(rows[0] - rows[2]).max() > 1e-4


@pytest.mark.parametrize("name", ["preprocessor_config.json", "processor_config.json"])
def test_the_folder_says_how_pictures_are_seen(copy: Path, name: str) -> None:
    record = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.6, 0.7], "do_center_crop": False}
    (copy / name).write_text(json.dumps(record if name.startswith("pre") else {"image_processor": record}))
    encoder = clip.build(str(copy))
    assert encoder.framing == "whole"
    expected = normalise(pictures(1, 32), [0.1, 0.2, 0.3], [0.5, 0.6, 0.7])
    np.testing.assert_allclose(encoder.transform.pixels(pictures(1, 32)), expected, atol=1e-6)


def test_names_of_openai_lead_to_the_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fetch(name: str, **_: object) -> str:
        asked.append(name)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    assert clip.build("ViT-L/14-336").name == "clip:ViT-L/14-336"
    clip.build("somebody/a-clip")
    assert asked == ["openai/clip-vit-large-patch14-336", "somebody/a-clip"]


def test_weights_that_are_not_here_are_named_when_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(SiglumError, match=r"needs 'openai/clip-vit-base-patch32'.*`hf download openai/") as caught:
        clip.build("ViT-B/32")
    assert "\n" not in str(caught.value)


def test_missing_weights_tokenizer_or_package_are_named(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = load_file(copy / "model.safetensors")
    del weights["visual_projection.weight"]
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    with pytest.raises(SiglumError, match=r"lacks 1 weights of a CLIPModel, .* 'visual_projection.weight'"):
        clip.build(str(copy))
    (copy / "model.safetensors").unlink()
    with pytest.raises(SiglumError, match="holds no weights"):
        clip.build(str(copy))
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(SiglumError, match=r"needs the package transformers; install it with `pip install 'siglum\["):
        clip.build(str(copy))


def test_a_folder_without_tokenizer_is_refused(copy: Path) -> None:
    for path in copy.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(SiglumError, match="holds no tokenizer") as caught:
        clip.build(str(copy))
    assert "\n" not in str(caught.value)


def test_fingerprints_follow_weights_and_tokenizer_alone(folder: Path, copy: Path) -> None:
    first = clip.build(str(folder)).fingerprint()
    assert len(first) == 16 and int(first, 16) >= 0
    assert first == clip.build(str(copy), batch_size=3, precision="bfloat16").fingerprint()
    found = {first}
    tokenizer = (copy / "tokenizer.json").read_text()
    (copy / "tokenizer.json").write_text(tokenizer.replace('"q"', '"0"'))
    found.add(clip.build(str(copy)).fingerprint())
    (copy / "tokenizer.json").write_text(tokenizer)
    weights = load_file(copy / "model.safetensors")
    weights["visual_projection.weight"][0, 0] += 1
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    found.add(clip.build(str(copy)).fingerprint())
    assert len(found) == 3


def test_half_precisions_are_near_and_others_are_refused(folder: Path) -> None:
    assert_half_precisions_are_near(clip.build, str(folder))
    with pytest.raises(SiglumError, match="precision is 'int8', but must be one of: auto, float32"):
        clip.build(str(folder), precision="int8")
    with pytest.raises(SiglumError, match="batch size is 0"):
        clip.build(str(folder), batch_size=0)


@pytest.mark.parametrize("bad", [np.zeros((16, 32, 3), np.uint8), np.zeros((32, 32, 3), np.float32)])
def test_other_pictures_are_refused(folder: Path, bad: np.ndarray) -> None:
    with pytest.raises(SiglumError, match=r"must be uint8 \(32, 32, 3\)"):
        clip.build(str(folder)).encode_images([bad])
