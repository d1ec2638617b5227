"""Starting from a T5 folder: what is copied, what is left, what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from siglum.config import DecoderConfig
from siglum.generate.decoder import CodeDecoder
from siglum.generate.weights import load_t5, t5_key
from siglum.types import SiglumError

CONFIG = DecoderConfig(d_model=16, d_ff=32, d_kv=4, heads=2, encoder_layers=2, decoder_layers=3, soft_tokens=2)
LEFT = ["soft", "soft_bias", "table"]


def make(seed: int = 0, **changes: int) -> CodeDecoder:
    """Return a small decoder."""
    return CodeDecoder(replace(CONFIG, **changes), (3, 5), 8, torch.Generator().manual_seed(seed))


def write(folder: Path, *, safe: bool = True, **config: object) -> CodeDecoder:
    """Write the folder of a random T5 model and return a decoder with its blocks."""
    source = make(seed=9)
    weights = {key: p.detach().clone() for name, p in source.named_parameters() if (key := t5_key(name))}
    weights["shared.weight"] = torch.randn(100, 16)
    (folder / "config.json").write_text(json.dumps({"model_type": "t5", "feed_forward_proj": "relu", **config}))
    if safe:
        save_file(weights, folder / "model.safetensors")
    else:
        torch.save(weights, folder / "pytorch_model.bin")
    return source


@pytest.mark.parametrize("safe", [True, False], ids=["safetensors", "bin"])
def test_blocks_are_copied_and_the_rest_is_left(tmp_path: Path, safe: bool) -> None:
    source, decoder = dict(write(tmp_path, safe=safe).named_parameters()), make()
    before = {name: p.detach().clone() for name, p in decoder.named_parameters()}
    assert sorted(load_t5(decoder, tmp_path)) == LEFT
    for name, parameter in decoder.named_parameters():
        assert torch.equal(parameter, before[name] if name in LEFT else source[name]), name


@pytest.mark.parametrize(
    "layers", [{"encoder_layers": 0, "decoder_layers": 1}, {"encoder_layers": 1, "soft_tokens": 1}]
)
def test_fewer_layers_take_the_first(tmp_path: Path, layers: dict[str, int]) -> None:
    source, decoder = dict(write(tmp_path).named_parameters()), make(**layers)
    assert sorted(load_t5(decoder, tmp_path)) == LEFT
    for name, parameter in decoder.named_parameters():
        assert name in LEFT or torch.equal(parameter, source[name]), name


@pytest.mark.parametrize(
    ("changes", "message"), [({"d_ff": 48}, r"\(32, 16\).*\(48, 16\)"), ({"decoder_layers": 4}, r"decoder\.block\.3")]
)
def test_another_shape_is_refused_and_nothing_is_copied(tmp_path: Path, changes: dict[str, int], message: str) -> None:
    write(tmp_path)
    decoder = make(**changes)
    before = {name: p.detach().clone() for name, p in decoder.named_parameters()}
    with pytest.raises(SiglumError, match=message):
        load_t5(decoder, tmp_path)
    assert all(torch.equal(p, before[name]) for name, p in decoder.named_parameters())


@pytest.mark.parametrize(
    ("name", "value"),
    [("feed_forward_proj", "gated-gelu"), ("relative_attention_num_buckets", 64), ("layer_norm_epsilon", 1e-5)],
)
def test_another_architecture_is_refused(tmp_path: Path, name: str, value: object) -> None:
    write(tmp_path, **{name: value})
    with pytest.raises(SiglumError, match=name):
        load_t5(make(), tmp_path)


def test_a_missing_or_broken_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SiglumError, match=r"config\.json"):
        load_t5(make(), tmp_path)
    write(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(SiglumError, match="truncated"):
        load_t5(make(), tmp_path)
    path.unlink()
    with pytest.raises(SiglumError, match="neither"):
        load_t5(make(), tmp_path)


def test_a_pickle_with_code_in_it_is_not_run(tmp_path: Path) -> None:
    ran = tmp_path / "ran"

    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[Path]]:
            return Path.touch, (ran,)

    write(tmp_path, safe=False)
    torch.save({"bomb": Bomb()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(SiglumError, match="could not be read"):
        load_t5(make(), tmp_path)
    assert not ran.exists()
