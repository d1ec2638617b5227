"""GENIUS' checkpoints, made here of the libraries that it is made of: codes, reconstructions and logits are theirs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from siglum.bridges import CodedItems, read_genius
from siglum.cli.main import main
from siglum.data.vectors import features_of
from siglum.search.retriever import Retriever
from siglum.types import Features, SiglumError
from training_configuration import training_configuration

vqp = pytest.importorskip("vector_quantize_pytorch")
transformers = pytest.importorskip("transformers")

DIM, WORDS, LEVELS, SOFT, WIDTH = 8, 6, 3, 5, 12
SIZES = (3, *(WORDS,) * LEVELS)


class Combiner(nn.Module):
    """GENIUS' fusion, under its names."""

    def __init__(self) -> None:
        super().__init__()
        self.text_projection_layer, self.image_projection_layer = nn.Linear(DIM, 10), nn.Linear(DIM, 10)
        self.combiner_layer, self.output_layer = nn.Linear(20, 14), nn.Linear(14, DIM)
        gate = (nn.Linear(20, 14), nn.ReLU(), nn.Dropout(0), nn.Linear(14, 1), nn.Sigmoid())
        self.dynamic_scalar = nn.Sequential(*gate)

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        both = torch.cat([self.text_projection_layer(text).relu(), self.image_projection_layer(image).relu()], -1)
        share = self.dynamic_scalar(both)
        mixed = self.output_layer(self.combiner_layer(both).relu()) + share * text + (1 - share) * image
        return F.normalize(mixed)


class Quantizer(nn.Module):
    """The combiner and the library's residual quantiser, whose first level has three codes."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Combiner()
        common = {"dim": DIM, "codebook_dim": DIM, "kmeans_init": True, "kmeans_iters": 5, "decay": 0.9}
        self.vq = vqp.VectorQuantize(codebook_size=3, threshold_ema_dead_code=0, **common)
        self.residual_rq = vqp.ResidualVQ(num_quantizers=LEVELS + 1, codebook_size=WORDS, **common)
        self.residual_rq.layers[0] = self.vq


class Generator(nn.Module):
    """Soft tokens and a T5 without encoder layers that knows pad, end, unknown and the codes."""

    def __init__(self, quantizer: Quantizer) -> None:
        super().__init__()
        self.quantizer = quantizer
        config = transformers.T5Config(
            vocab_size=3 + sum(SIZES), d_model=WIDTH, d_kv=4, d_ff=20, num_heads=2, num_layers=0, num_decoder_layers=2
        )
        self.id_generator = transformers.T5ForConditionalGeneration(config)
        self.embed_projector = nn.Sequential(nn.Linear(DIM, WIDTH * SOFT))
        self.contra_projector = nn.Linear(DIM, WIDTH)


@pytest.fixture(scope="module")
def generator() -> Generator:
    torch.manual_seed(0)
    quantizer = Quantizer()
    image, text = torch.randn(2, 400, DIM)
    with torch.no_grad():
        quantizer.train()
        quantizer.residual_rq(quantizer.encoder(image, text)[None])
    model = Generator(quantizer)
    with torch.no_grad():
        for name, parameter in model.id_generator.named_parameters():
            parameter.normal_(1.0 if "layer_norm" in name else 0.0, 0.3)
    return model.eval()


def features(number: int = 60) -> Features:
    draw = np.random.default_rng(1)
    image, text = draw.normal(size=(2, number, DIM)).astype(np.float32)
    image[::3], text[1::3] = np.nan, np.nan  # texts, pictures, and both
    return features_of([f"9:{row}" for row in range(number)], image=image, text=text)


def saved(path: Path, model: nn.Module, **more: Any) -> Path:
    torch.save({"model": model.state_dict(), "epoch": 30, "optimizer": {}, **more}, path)
    return path


@torch.no_grad()
def test_codes_and_reconstructions_are_the_library_s(
    generator: Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        path = saved(tmp_path / "rq.pth", generator.quantizer, config=training_configuration(patch))
    read, items = read_genius(path), features()
    assert read.decoder is None and read.tokenizer.quantizer.sizes == SIZES
    vectors = generator.quantizer.encoder(torch.from_numpy(items.image), torch.from_numpy(items.text))
    quantised, codes, _ = generator.quantizer.residual_rq(vectors)
    retriever = read.retriever(items)
    torch.testing.assert_close(retriever.vectors(items), vectors, atol=1e-6, rtol=0)
    coded = CodedItems.of(retriever)
    assert coded.codes_NL.tolist() == codes.tolist() and coded.ids == list(items.ids)
    torch.testing.assert_close(read.tokenizer.quantizer.decode(codes), quantised, atol=1e-6, rtol=0)
    assert len(set(codes[:, 0].tolist())) == 3, "the first token tells something"


def test_items_that_are_no_features_of_genius_are_refused(generator: Generator, tmp_path: Path) -> None:
    read, wide = read_genius(saved(tmp_path / "rq.pth", generator.quantizer)), np.ones((4, DIM + 1), np.float32)
    with pytest.raises(SiglumError, match=f"image features of the items have {DIM + 1} numbers"):
        read.retriever(features_of(list("abcd"), image=wide))
    with pytest.raises(SiglumError, match="zero"):
        read.retriever(features_of(list("abcd"), image=0 * wide[:, 1:]))


@torch.no_grad()
def test_logits_are_those_of_its_t5(generator: Generator, tmp_path: Path) -> None:
    read = read_genius(saved(tmp_path / "t5.pth", generator))
    assert read.decoder is not None
    query, codes = F.normalize(torch.randn(7, DIM)), torch.stack([torch.randint(size, (7,)) for size in SIZES], 1)
    offset = torch.tensor([3, *SIZES[:-1]]).cumsum(0)
    tokens = torch.cat([torch.zeros(7, 1, dtype=torch.long), (codes + offset)[:, :-1]], 1)
    soft = generator.embed_projector(query).reshape(7, SOFT, WIDTH)
    wanted = generator.id_generator(inputs_embeds=soft, decoder_input_ids=tokens).logits
    found = read.decoder.joint_logits(query, codes)
    torch.testing.assert_close(found[..., 1:], wanted[..., 3:], atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(found[..., 0], wanted[..., 0], atol=2e-5, rtol=1e-4)


def test_a_compiled_generator_makes_a_run(generator: Generator, tmp_path: Path, call: Any) -> None:
    state = {k.replace("id_generator.", "id_generator._orig_mod."): v for k, v in generator.state_dict().items()}
    torch.save({"model": state}, tmp_path / "t5.pth")
    items = features()
    parts = {name: np.nan_to_num(getattr(items, name)) for name in ("image", "text")}
    masks = {f"has_{name}": getattr(items, f"has_{name}") for name in ("image", "text")}
    keys = {torch.tensor(9 * 10_000_000 + row): row for row in range(len(items))}  # as in a union of pools
    arrays = {
        "img": parts["image"],
        "text": parts["text"],
        "img_mask": masks["has_image"],
        "text_mask": masks["has_text"],
    }
    torch.save({name: torch.from_numpy(one) for name, one in arrays.items()} | {"id_to_index": keys}, tmp_path / "p.pt")
    given = ("--genius", tmp_path / "t5.pth", "--items", tmp_path / "p.pt", "--out", tmp_path / "run")
    assert json.loads(call("import", *given, "--json"))["items"] == 60
    retriever, wanted = Retriever.load(tmp_path / "run"), read_genius(tmp_path / "t5.pth").retriever(items)
    assert list(retriever.index.ids)[:2] == ["90000000", "90000001"]
    assert retriever.config.scorer == "decoder" and retriever.config.normalisation == "joint"
    for hit, own in zip(*(one.search_features(items, k=5)[3] for one in (retriever, wanted)), strict=True):
        assert (hit.score, hit.codes) == (own.score, own.codes)


def test_what_is_no_checkpoint_of_genius_is_refused(generator: Generator, tmp_path: Path, capsys: Any) -> None:
    state = generator.state_dict()
    lacking = {key: value for key, value in state.items() if "combiner_layer" not in key}
    fewer = {**state, "id_generator.shared.weight": state["id_generator.shared.weight"][:-1]}
    apart = {**state, "id_generator.lm_head.weight": state["id_generator.lm_head.weight"] + 1}
    none = {key: value for key, value in state.items() if "residual_rq" not in key}
    for weights, words in (
        (lacking, "lacks the weights 'encoder.combiner_layer.weight'"),
        (fewer, "it is no generator of these codebooks"),
        (apart, "reads and writes tokens by two tables"),
        (none, "holds no codebooks of GENIUS"),
    ):
        torch.save({"model": weights}, tmp_path / "bad.pth")
        with pytest.raises(SiglumError, match=words):
            read_genius(tmp_path / "bad.pth")
    assert main(["import", "--genius", str(tmp_path / "bad.pth"), "--out", str(tmp_path / "run")]) == 2
    assert "--items" in capsys.readouterr().err and not (tmp_path / "run").exists()
