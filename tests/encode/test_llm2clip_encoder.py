"""LLM2CLIP: a tiny random CLIP, Llama and adapter as they are released, against forwards written from the formulas."""

from __future__ import annotations

import json
import shutil
import string
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
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
from torch.nn.functional import gelu, silu

from siglum.encode import llm2clip
from siglum.encode.base import Encoder
from siglum.types import SiglumError

transformers = pytest.importorskip("transformers")
WIDTH, DIM, LAYERS, HEADS, SHARED = 32, 20, 2, 4, 2
VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
SPECIAL = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
LETTERS = [*string.ascii_letters, " ", "\n"]


def adapter_weights() -> dict[str, Tensor]:
    shapes: dict[str, tuple[int, ...]] = {
        "2.weight": (WIDTH,),
        "2.bias": (WIDTH,),
        "3.weight": (DIM, WIDTH),
        "3.bias": (DIM,),
    }
    for block in ("0", "1"):
        shapes |= {f"{block}.ln.weight": (WIDTH,), f"{block}.ln.bias": (WIDTH,)}
        shapes |= {f"{block}.fn.0.weight": (2 * WIDTH, WIDTH), f"{block}.fn.0.bias": (2 * WIDTH,)}
        shapes |= {f"{block}.fn.3.weight": (WIDTH, 2 * WIDTH), f"{block}.fn.3.bias": (WIDTH,)}
    return randoms({f"text_adapter.text_adaptor.{key}": shape for key, shape in shapes.items()})


def _save_clip(root: Path) -> None:
    torch.manual_seed(0)
    config = transformers.CLIPVisionConfig(**VISION, image_size=32, patch_size=16, projection_dim=DIM)
    model = transformers.CLIPVisionModelWithProjection(config)
    for weight in model.parameters():
        weight.data += 0.05 * torch.randn_like(weight)
    record = {"model_type": "clip", "architectures": ["LLM2CLIPModel"], "projection_dim": DIM, "text_config": {}}
    record["auto_map"] = {"AutoModel": "modeling_clip.LLM2CLIPModel"}
    record["vision_config"] = VISION | {"image_size": 32, "patch_size": 16, "model_type": "clip_vision_model"}
    (root / "config.json").write_text(json.dumps(record))
    state = {"logit_scale": torch.ones(()), **model.state_dict(), **adapter_weights()}
    save_file(state, root / "model.safetensors", {"format": "pt"})


def _save_llm(root: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocab = {token: place for place, token in enumerate([*SPECIAL, *LETTERS])}
    backend = Tokenizer(models.WordLevel(vocab, unk_token=SPECIAL[1]))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.add_special_tokens(SPECIAL)
    backend.post_processor = processors.TemplateProcessing(single=f"{SPECIAL[0]} $A", special_tokens=[(SPECIAL[0], 0)])
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=SPECIAL[0], eos_token=SPECIAL[1]
    ).save_pretrained(root)
    config = transformers.LlamaConfig(
        vocab_size=len(vocab), hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=SHARED, bos_token_id=0, eos_token_id=1, rms_norm_eps=1e-5,
    )  # fmt: skip
    torch.manual_seed(1)
    model = transformers.LlamaModel(config)
    for weight in model.parameters():
        weight.data += 0.1 * torch.randn_like(weight)
    model.save_pretrained(root)
    # The released folder asks for code of its own, which must not be needed.
    record = json.loads((root / "config.json").read_text())
    record |= {"architectures": ["LlamaBiModel"], "auto_map": {"AutoModel": "modeling_bidirectional.LlamaBiModel"}}
    (root / "config.json").write_text(json.dumps(record))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("llm2clip")
    (root / "llm").mkdir()
    _save_clip(root)
    _save_llm(root / "llm")
    return root


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def _rms(rows: Tensor, weight: Tensor) -> Tensor:
    return rows / (rows.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def _turn(rows: Tensor, heads: int) -> Tensor:
    """Rotate pairs (i, i + half) of every head by an angle that grows with the place."""
    rows = rows.unflatten(-1, (heads, -1))
    half = rows.shape[-1] // 2
    angles = torch.arange(rows.shape[1])[:, None, None] / 10000 ** (torch.arange(half) / half)
    low, high = rows[..., :half], rows[..., half:]
    return torch.cat([low * angles.cos() - high * angles.sin(), high * angles.cos() + low * angles.sin()], -1)


def reference_text(folder: Path, text: str) -> Tensor:
    """One text through a Llama whose tokens see both sides, the mean over its own tokens, and the adapter."""
    state = load_file(folder / "llm" / "model.safetensors")
    letters = [LETTERS.index(letter) + len(SPECIAL) for letter in text]
    user = [LETTERS.index(letter) + len(SPECIAL) for letter in "user"]
    newline = LETTERS.index("\n") + len(SPECIAL)
    rows = state["embed_tokens.weight"][[0, 2, *user, 3, newline, newline, *letters, 4]][None]
    for layer in range(LAYERS):
        base = f"layers.{layer}."
        inner = _rms(rows, state[f"{base}input_layernorm.weight"])
        parts = [dense(inner, state, f"{base}self_attn.{one}_proj") for one in "qkv"]
        query, key = _turn(parts[0], HEADS).flatten(2), _turn(parts[1], SHARED)
        key, value = (
            part.repeat_interleave(HEADS // SHARED, 2) for part in (key, parts[2].unflatten(-1, (SHARED, -1)))
        )
        rows = rows + dense(attend(query, key.flatten(2), value.flatten(2), HEADS), state, f"{base}self_attn.o_proj")
        inner = _rms(rows, state[f"{base}post_attention_layernorm.weight"])
        gate = silu(dense(inner, state, f"{base}mlp.gate_proj"))
        rows = rows + dense(gate * dense(inner, state, f"{base}mlp.up_proj"), state, f"{base}mlp.down_proj")
    rows = _rms(rows, state["norm.weight"])[0, -len(letters) - 1 :].mean(0)
    state = {key.removeprefix("text_adapter.text_adaptor."): value for key, value in adapter_weights().items()}
    rows = rows / rows.norm()
    for block in ("0", "1"):
        rows = rows + dense(
            gelu(dense(norm(rows, state, f"{block}.ln"), state, f"{block}.fn.0")), state, f"{block}.fn.3"
        )
    return dense(norm(rows, state, "2"), state, "3")


def test_texts_are_those_of_the_formulas(folder: Path) -> None:
    encoder = llm2clip.build(str(folder))
    assert isinstance(encoder, Encoder) and encoder.name == f"llm2clip:{folder}" and encoder.joint
    assert (encoder.image_dim, encoder.text_dim, encoder.picture_size, encoder.framing) == (20, 20, 32, "centre")
    texts = ["A red star", "b", "a longer text that fills its batch"]
    expected = torch.stack([reference_text(folder, text) for text in texts])
    np.testing.assert_allclose(encoder.encode_texts(texts), expected, atol=1e-5)


def test_pictures_are_the_projected_features_of_the_vision_model(folder: Path) -> None:
    config = transformers.CLIPVisionConfig(**VISION, image_size=32, patch_size=16, projection_dim=DIM)
    state, shown = load_file(folder / "model.safetensors"), pictures(3, 32)
    model = transformers.CLIPVisionModel(config).eval()
    names = {key: key if key in state else f"vision_model.{key}" for key in model.state_dict()}
    model.load_state_dict({key: state[name] for key, name in names.items()})
    with torch.no_grad():
        pooled = model(normalise(shown, OPENAI_MEAN, OPENAI_STD)).pooler_output
    expected = pooled @ state["visual_projection.weight"].T
    np.testing.assert_allclose(llm2clip.build(str(folder)).encode_images(shown), expected, atol=1e-5)


def test_half_precisions_are_near(folder: Path) -> None:
    assert_half_precisions_are_near(llm2clip.build, str(folder))


def test_rows_do_not_depend_on_the_batch(folder: Path) -> None:
    assert_rows_do_not_depend_on_the_batch(llm2clip.build(str(folder)), llm2clip.build(str(folder), batch_size=1))


def test_long_texts_are_cut(folder: Path) -> None:
    rows = llm2clip.build(str(folder)).encode_texts(["a" * 600, "a" * 600 + "b", "a" * 100 + "b" * 500])
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-6)
    assert np.abs(rows[0] - rows[2]).max() > 1e-4


def test_the_language_model_may_lie_elsewhere(copy: Path, folder: Path) -> None:
    shutil.rmtree(copy / "llm")
    encoder, whole = llm2clip.build(f"{copy}+{folder / 'llm'}"), llm2clip.build(str(folder))
    assert encoder.name == f"llm2clip:{copy}+{folder / 'llm'}"
    assert encoder.fingerprint() == whole.fingerprint()
    assert np.array_equal(encoder.encode_texts(["a"]), whole.encode_texts(["a"]))


def test_the_fingerprint_follows_both_models(copy: Path) -> None:
    found = {llm2clip.build(str(copy)).fingerprint()}
    for name, key in (("model.safetensors", "visual_projection.weight"), ("llm/model.safetensors", "norm.weight")):
        weights = load_file(copy / name)
        weights[key] += 1
        save_file(weights, copy / name, {"format": "pt"})
        found.add(llm2clip.build(str(copy)).fingerprint())
    assert len(found) == 3


@pytest.mark.parametrize("key", ["visual_projection.weight", "text_adapter.text_adaptor.1.fn.3.bias"])
def test_missing_weights_are_named(copy: Path, key: str) -> None:
    weights = load_file(copy / "model.safetensors")
    del weights[key]
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    with pytest.raises(SiglumError, match=f"lacks the weights '{key}'"):
        llm2clip.build(str(copy))


def test_models_that_do_not_belong_together_are_refused(copy: Path) -> None:
    weights = load_file(copy / "model.safetensors")
    save_file({key: value for key, value in weights.items() if "adapt" not in key}, copy / "model.safetensors")
    with pytest.raises(SiglumError, match=r"lacks the weights 'text_adapter\.\*'"):
        llm2clip.build(str(copy))
    for key in ("0.fn.0", "1.fn.0", "3"):
        weights[f"text_adapter.text_adaptor.{key}.weight"] = torch.zeros(8, 8)
    for key, value in weights.items():
        if key.startswith("text_adapter") and value.shape != (8, 8):
            weights[key] = torch.zeros((8, 8) if key.endswith("fn.3.weight") else 8)
    save_file(weights, copy / "model.safetensors")
    with pytest.raises(SiglumError, match=r"gives 32 numbers, but the adapter in .* takes 8"):
        llm2clip.build(str(copy))
    shutil.rmtree(copy / "llm")
    with pytest.raises(SiglumError, match=r"has no folder `llm`; add one as in llm2clip:.*\+microsoft/"):
        llm2clip.build(str(copy))


def test_a_language_model_of_another_family_is_refused(copy: Path) -> None:
    path = copy / "llm" / "tokenizer.json"
    path.write_text(path.read_text().replace("<|eot_id|>", "<|other|>"))
    with pytest.raises(SiglumError, match=r"not a Llama 3 as LLM2CLIP uses it.*<\|eot_id\|>"):
        llm2clip.build(str(copy))
