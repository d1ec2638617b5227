"""UniIR's CLIP-SF: tiny random weights under OpenAI's key names against a forward written from the formulas."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import (
    OPENAI_MEAN,
    OPENAI_STD,
    TEXTS,
    assert_half_precisions_are_near,
    assert_rows_do_not_depend_on_the_batch,
    attend,
    dense,
    norm,
    normalise,
    pictures,
    randoms,
    save_clip_tokenizer,
)
from torch import Tensor

from siglum.encode import uniir_clip
from siglum.encode.base import Encoder
from siglum.types import SiglumError
from training_configuration import training_configuration

transformers = pytest.importorskip("transformers")
WIDTH, LAYERS, CONTEXT, PATCH, GRID, DIM, VOCABULARY = 128, 2, 77, 8, 3, 24, 54


def _blocks(prefix: str) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(LAYERS):
        block = f"{prefix}transformer.resblocks.{layer}."
        shapes |= {f"{block}attn.in_proj_weight": (3 * WIDTH, WIDTH), f"{block}attn.in_proj_bias": (3 * WIDTH,)}
        for name, out, into in (
            ("attn.out_proj", WIDTH, WIDTH),
            ("mlp.c_fc", 4 * WIDTH, WIDTH),
            ("mlp.c_proj", WIDTH, 4 * WIDTH),
        ):
            shapes |= {f"{block}{name}.weight": (out, into), f"{block}{name}.bias": (out,)}
        for name in ("ln_1", "ln_2"):
            shapes |= {f"{block}{name}.weight": (WIDTH,), f"{block}{name}.bias": (WIDTH,)}
    return shapes


def openai_state() -> dict[str, Tensor]:
    shapes: dict[str, tuple[int, ...]] = {
        "positional_embedding": (CONTEXT, WIDTH),
        "text_projection": (WIDTH, DIM),
        "logit_scale": (),
        "visual.class_embedding": (WIDTH,),
        "visual.positional_embedding": (1 + GRID**2, WIDTH),
        "visual.proj": (WIDTH, DIM),
        "visual.conv1.weight": (WIDTH, 3, PATCH, PATCH),
        "token_embedding.weight": (VOCABULARY, WIDTH),
    }
    for name in ("visual.ln_pre", "visual.ln_post", "ln_final"):
        shapes |= {f"{name}.weight": (WIDTH,), f"{name}.bias": (WIDTH,)}
    return randoms(shapes | _blocks("visual.") | _blocks(""))


STATE = openai_state()


def _tower(rows: Tensor, prefix: str, mask: Tensor | None) -> Tensor:
    for layer in range(LAYERS):
        block = f"{prefix}transformer.resblocks.{layer}."
        inner = norm(rows, STATE, f"{block}ln_1")
        packed = inner @ STATE[f"{block}attn.in_proj_weight"].T + STATE[f"{block}attn.in_proj_bias"]
        rows = rows + dense(attend(*packed.chunk(3, -1), WIDTH // 64, mask), STATE, f"{block}attn.out_proj")
        wide = dense(norm(rows, STATE, f"{block}ln_2"), STATE, f"{block}mlp.c_fc")
        rows = rows + dense(wide * torch.sigmoid(1.702 * wide), STATE, f"{block}mlp.c_proj")
    return rows


def reference_images(pixels: Tensor) -> Tensor:
    patches = torch.nn.functional.conv2d(pixels, STATE["visual.conv1.weight"], stride=PATCH).flatten(2).transpose(1, 2)
    first = STATE["visual.class_embedding"].expand(len(pixels), 1, WIDTH)
    rows = torch.cat([first, patches], 1) + STATE["visual.positional_embedding"]
    rows = _tower(norm(rows, STATE, "visual.ln_pre"), "visual.", None)
    return norm(rows[:, 0], STATE, "visual.ln_post") @ STATE["visual.proj"]


def reference_texts(ids: Tensor) -> Tensor:
    mask = torch.full((CONTEXT, CONTEXT), -torch.inf).triu(1)
    rows = _tower(STATE["token_embedding.weight"][ids] + STATE["positional_embedding"], "", mask)
    rows = norm(rows, STATE, "ln_final")
    return rows[torch.arange(len(ids)), ids.argmax(-1)] @ STATE["text_projection"]


def save(path: Path, state: dict[str, Tensor], **more: object) -> str:
    torch.save({"model": {f"clip_model.{key}": value for key, value in state.items()}, "epoch": 3, **more}, path)
    return str(path)


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    save_clip_tokenizer(tmp_path)
    return save(tmp_path / "clip_sf.pth", STATE)


def test_features_are_those_of_the_formulas(checkpoint: str) -> None:
    encoder = uniir_clip.build(checkpoint)
    assert isinstance(encoder, Encoder) and encoder.name == f"uniir-clip-sf:{checkpoint}" and encoder.joint
    assert (encoder.image_dim, encoder.text_dim, encoder.picture_size, encoder.framing) == (24, 24, 24, "centre")
    shown = pictures(3, 24)
    expected = reference_images(normalise(shown, OPENAI_MEAN, OPENAI_STD))
    np.testing.assert_allclose(encoder.encode_images(shown), expected, atol=1e-5)
    # OpenAI pads with token 0 behind the end, which transformers' tokenizer does with the end itself.
    letters = [[ord(c) - ord("a") for c in word] for word in ("ab", "z", "")]
    ids = [[52, *row[:-1], *(last + 26 for last in row[-1:]), 53] for row in letters]
    tokens = torch.tensor([row + [0] * (CONTEXT - len(row)) for row in ids])
    np.testing.assert_allclose(encoder.encode_texts(["AB", "z", ""]), reference_texts(tokens), atol=1e-5)


def test_open_clip_gives_the_same(checkpoint: str) -> None:
    model = pytest.importorskip("open_clip").model
    theirs = model.build_model_from_openai_state_dict(dict(STATE), cast_dtype=torch.float32).float().eval()
    theirs.load_state_dict(STATE)  # Its builder has rounded the weights to float16.
    shown = pictures(2, 24)
    with torch.no_grad():
        expected = theirs.encode_image(normalise(shown, OPENAI_MEAN, OPENAI_STD)).numpy()
    np.testing.assert_allclose(uniir_clip.build(checkpoint).encode_images(shown), expected, atol=1e-5)


def test_half_precisions_are_near(checkpoint: str) -> None:
    assert_half_precisions_are_near(uniir_clip.build, checkpoint)


def test_rows_do_not_depend_on_the_batch(checkpoint: str) -> None:
    assert_rows_do_not_depend_on_the_batch(uniir_clip.build(checkpoint), uniir_clip.build(checkpoint, batch_size=1))


def test_a_training_configuration_beside_the_weights_is_passed_over(
    checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(checkpoint)
    with monkeypatch.context() as patch:
        save(
            path,
            STATE,
            config=training_configuration(patch),
            optimizer={"state": {0: torch.zeros(3)}, "param_groups": []},
        )
    assert uniir_clip.build(checkpoint).encode_texts(TEXTS).shape == (4, DIM)


def test_other_objects_are_not_loaded(checkpoint: str) -> None:
    save(Path(checkpoint), STATE, args=argparse.Namespace(lr=1))
    with pytest.raises(SiglumError, match=r"holds more than weights \(argparse.Namespace\).*torch.save") as caught:
        uniir_clip.build(checkpoint)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["visual.proj", "transformer.resblocks.1.attn.in_proj_bias", "token_embedding.weight"])
def test_missing_weights_are_named(checkpoint: str, key: str) -> None:
    save(Path(checkpoint), {name: value for name, value in STATE.items() if name != key})
    with pytest.raises(SiglumError, match=f"lacks the weights 'clip_model.{key}'"):
        uniir_clip.build(checkpoint)


def test_other_files_are_refused(checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SiglumError, match="does not exist"):
        uniir_clip.build(str(tmp_path / "none.pth"))
    torch.save({"weights": {}}, tmp_path / "other.pth")
    with pytest.raises(SiglumError, match="no weights under 'model'"):
        uniir_clip.build(str(tmp_path / "other.pth"))
    torch.save({"model": {str(row): torch.zeros(9) for row in range(40)}}, tmp_path / "small.pth")
    small = (tmp_path / "small.pth").read_bytes()
    for cut in (Path(checkpoint).read_bytes()[:2000], small[:4200], small[:-1]):
        (tmp_path / "cut.pth").write_bytes(cut)
        with pytest.raises(SiglumError, match="not a whole torch checkpoint") as caught:
            uniir_clip.build(str(tmp_path / "cut.pth"))
        assert "[Errno" not in str(caught.value)
    save(Path(checkpoint), STATE | {"visual.ln_pre.weight": torch.zeros(3)})
    with pytest.raises(SiglumError, match="do not fit together"):
        uniir_clip.build(checkpoint)


def test_a_tokenizer_is_fetched_only_where_none_lies_beside(checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(Path(checkpoint).parent / "cache"))
    uniir_clip.build(checkpoint)
    (Path(checkpoint).parent / "tokenizer.json").unlink()
    with pytest.raises(SiglumError, match="needs 'openai/clip-vit-large-patch14'"):
        uniir_clip.build(checkpoint)
