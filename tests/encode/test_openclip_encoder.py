"""open_clip models, on a tiny random one in a folder of open_clip's own format."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import TEXTS, assert_half_precisions_are_near, assert_rows_do_not_depend_on_the_batch, pictures

from siglum.encode import openclip
from siglum.encode.base import Encoder
from siglum.types import SiglumError


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(SiglumError, match=r"needs the package open_clip; install it with `pip install 'siglum\[openc"):
        openclip.build("ViT-B-32/laion2b_s34b_b79k")


@pytest.fixture(scope="module")
def open_clip() -> Any:
    return pytest.importorskip("open_clip")


@pytest.fixture(scope="module", params=["shortest", "squash"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, open_clip: Any) -> Path:
    from safetensors.torch import save_file

    root = tmp_path_factory.mktemp("openclip")
    vision = {"image_size": 32, "layers": 2, "width": 32, "patch_size": 16, "head_width": 16}
    text = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
    torch.manual_seed(0)
    model = open_clip.model.CLIP(24, vision, text)
    shown = {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4], "interpolation": "bicubic", "resize_mode": request.param}
    config = {"model_cfg": {"embed_dim": 24, "vision_cfg": vision, "text_cfg": text}, "preprocess_cfg": shown}
    (root / "open_clip_config.json").write_text(json.dumps(config))
    save_file(model.state_dict(), root / "open_clip_model.safetensors")
    return root


def test_features_are_those_of_open_clip_itself(folder: Path, open_clip: Any) -> None:
    from PIL import Image

    encoder = openclip.build(str(folder))
    assert isinstance(encoder, Encoder) and encoder.name == f"openclip:{folder}"
    assert (encoder.image_dim, encoder.text_dim, encoder.picture_size) == (24, 24, 32)
    model, _, prepare = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    assert encoder.framing == {"shortest": "centre", "squash": "whole"}[model.visual.preprocess_cfg["resize_mode"]]
    shown = pictures(2, 32)
    with torch.no_grad():
        seen = model.eval().encode_image(torch.stack([prepare(Image.fromarray(picture)) for picture in shown]))
        read = model.encode_text(open_clip.get_tokenizer("ViT-B-32")(TEXTS))
    np.testing.assert_allclose(encoder.encode_images(shown), seen, atol=1e-5)
    np.testing.assert_allclose(encoder.encode_texts(TEXTS), read, atol=1e-5)


def test_half_precisions_are_near(folder: Path) -> None:
    assert_half_precisions_are_near(openclip.build, str(folder))


def test_rows_do_not_depend_on_the_batch(folder: Path) -> None:
    assert_rows_do_not_depend_on_the_batch(openclip.build(str(folder)), openclip.build(str(folder), batch_size=1))


def test_the_fingerprint_follows_the_weights_alone(folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    first = openclip.build(str(folder)).fingerprint()
    assert first == openclip.build(str(folder), batch_size=2, precision="bfloat16").fingerprint()
    weights = load_file(folder / "open_clip_model.safetensors")
    weights["visual.proj"][0, 0] += 1
    save_file(weights, tmp_path / "open_clip_model.safetensors")
    (tmp_path / "open_clip_config.json").write_text((folder / "open_clip_config.json").read_text())
    assert openclip.build(str(tmp_path)).fingerprint() != first


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("ViT-Z-1/openai", "no architecture 'ViT-Z-1'"),
        ("RN50/nobody", "no weights 'nobody' of RN50.*openai"),
        ("RN50", "''"),
    ],
)
def test_unknown_names_are_refused(open_clip: Any, model: str, said: str) -> None:
    with pytest.raises(SiglumError, match=said):
        openclip.build(model)


def test_a_folder_without_weights_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "open_clip_config.json").write_text((folder / "open_clip_config.json").read_text())
    with pytest.raises(SiglumError, match="open_clip cannot load") as caught:
        openclip.build(str(tmp_path))
    assert "\n" not in str(caught.value)
