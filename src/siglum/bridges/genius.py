"""GENIUS' checkpoints (sung-yeon-kim/GENIUS-CVPR25) as Siglum's tokenizer and decoder.

A checkpoint is a dictionary with the weights under `model`. That of the quantiser holds the combiner and nine
codebooks, the first of three codes; that of the generator holds the quantiser, 30 soft tokens and a T5 as well.
GENIUS' feature files are read by `siglum.data.precomputed`.
Shapes: V codewords of a level, D numbers a vector.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from siglum.config import DecoderConfig, FusionConfig, SearchConfig, TokenizerConfig
from siglum.data.vectors import check_features, with_widths
from siglum.device import check_device
from siglum.encode.base import Encoder
from siglum.encode.hub import count_layers, fill, read_checkpoint, take
from siglum.fuse.contrastive import embed, kinds_of
from siglum.fuse.modules import build_fusion
from siglum.generate.decoder import CodeDecoder
from siglum.generate.weights import t5_key
from siglum.given import as_file
from siglum.index import Index
from siglum.search.retriever import Retriever
from siglum.tokenize.base import NUM_MODALITIES
from siglum.tokenize.rq import ResidualQuantizer
from siglum.tokenize.train import Tokenizer
from siglum.types import Features, SiglumError

COMBINER = {
    "image_in": "image_projection_layer",
    "text_in": "text_projection_layer",
    "mlp.0": "combiner_layer",
    "mlp.3": "output_layer",
    "gate.0": "dynamic_scalar.0",
    "gate.3": "dynamic_scalar.3",
}
"""Layers of our combiner, and what they are called there."""
CODEBOOK = "residual_rq.layers.{}._codebook.{}"
PLAIN = ("<pad>", "</s>", "<unk>")
"""Tokens before the codes; the first begins every sequence."""
COMPILED = "_orig_mod."
"""What torch.compile puts into the names of weights."""


@dataclass(frozen=True, slots=True)
class Genius:
    """What a checkpoint holds."""

    tokenizer: Tokenizer
    decoder: CodeDecoder | None
    """None in a checkpoint of the quantiser."""

    def retriever(self, items: Features, encoder: Encoder | str | None = None, *, device: str = "cpu") -> Retriever:
        """Return a retriever of these items that ranks as GENIUS does: by log P over all tokens, geometry left out.

        Without a decoder it ranks by geometry alone. The encoder of queries is UniIR's, `uniir-clip-sf:CHECKPOINT`.
        """
        device, tokenizer = check_device(device), self.tokenizer
        items = with_widths(items, tokenizer.quantizer.dim, tokenizer.quantizer.dim, "items")
        check_features(items, "items")
        for module in (tokenizer.fusion, tokenizer.quantizer, self.decoder):
            if module is not None:
                module.to(device)
        codes_NT = tokenizer.quantizer.encode(embed(tokenizer.fusion, items, device), kinds_of(items, device))
        index = Index.build(items.ids, codes_NT.cpu().numpy(), tokenizer.quantizer.sizes, tokenizer.fingerprint())
        scorer = "geometry" if self.decoder is None else "decoder"
        config = SearchConfig(scorer=scorer, normalisation="joint")
        return Retriever(tokenizer, index, decoder=self.decoder, config=config, encoder=encoder, device=device)


def read_genius(path: str | Path) -> Genius:
    """Read a checkpoint of GENIUS' quantiser or generator, running nothing that is stored in it.

    Codes, reconstructions and logits are GENIUS' own, but for the probability it leaves to `</s>` and `<unk>`, which
    never follow.
    """
    path = as_file(path)
    weights = {key.replace(COMPILED, "").removeprefix("module."): value for key, value in read_checkpoint(path).items()}
    inside = {key.removeprefix("quantizer."): value for key, value in weights.items() if key.startswith("quantizer.")}
    tokenizer = _read_tokenizer(inside or weights, path)
    has_generator = any(key.startswith("id_generator.") for key in weights)
    return Genius(tokenizer, _read_decoder(weights, tokenizer, path) if has_generator else None)


def _read_tokenizer(state: Mapping[str, Tensor], path: Path) -> Tokenizer:
    projection, dim = take(state, "encoder.image_projection_layer.weight", path).shape
    hidden = len(take(state, "encoder.combiner_layer.weight", path))
    fusion = build_fusion(FusionConfig(dim=dim, projection=projection, hidden=hidden), dim, dim)

    def find(key: str) -> Tensor:
        layer, _, kind = key.rpartition(".")
        scaling = {"image_shift": 0.0, "text_shift": 0.0, "image_scale": 1.0, "text_scale": 1.0}
        return (
            torch.full((dim,), scaling[kind]) if not layer else take(state, f"encoder.{COMBINER[layer]}.{kind}", path)
        )

    fill(fusion, find, path)
    count = count_layers(state, "residual_rq.layers.")
    if not count:
        raise SiglumError(f"{path} holds no codebooks of GENIUS (residual_rq.layers).")
    books = [take(state, CODEBOOK.format(level, "embed"), path)[0] for level in range(count)]
    learned = len(books[0]) == NUM_MODALITIES
    config = TokenizerConfig(
        vocab=tuple(len(book) for book in books[int(learned) :]),
        modality="learned" if learned else "none",
        update="ema",
        rank_weight=0.0,
        revive_below=2.0,
        revive_absolute=True,
    )
    quantiser = ResidualQuantizer(config, dim)
    ours = {"codebooks.": "embed", "count_": "cluster_size", "total_": "embed_avg"}

    def find_code(key: str) -> Tensor:
        name = next((name for name in ours if key.startswith(name)), None)
        level = key.rpartition("." if name == "codebooks." else "_")[2]
        return quantiser.state_dict()[key] if name is None else take(state, CODEBOOK.format(level, ours[name]), path)[0]

    fill(quantiser, find_code, path)
    return Tokenizer(fusion.eval(), quantiser)


def _read_decoder(weights: Mapping[str, Tensor], tokenizer: Tokenizer, path: Path) -> CodeDecoder:
    state = {key.removeprefix("id_generator."): value for key, value in weights.items()}
    table, sizes = take(state, "shared.weight", path), tokenizer.quantizer.sizes
    if len(table) != len(PLAIN) + sum(sizes):
        raise SiglumError(
            f"{path} has {len(table)} tokens, but {len(PLAIN)} and a code each of {sizes} are"
            f" {len(PLAIN) + sum(sizes)}; it is no generator of these codebooks."
        )
    if not torch.equal(take(state, "lm_head.weight", path), table):
        raise SiglumError(f"{path} reads and writes tokens by two tables, but GENIUS' generator has one for both.")
    block = "decoder.block.0.layer"
    (inner, width), bias = (
        take(state, f"{block}.0.SelfAttention.q.weight", path).shape,
        "relative_attention_bias.weight",
    )
    heads = take(state, f"{block}.0.SelfAttention.{bias}", path).shape[1]
    config = DecoderConfig(
        d_model=width,
        d_ff=len(take(state, f"{block}.2.DenseReluDense.wi.weight", path)),
        d_kv=inner // heads,
        heads=heads,
        encoder_layers=count_layers(state, "encoder.block."),
        decoder_layers=count_layers(state, "decoder.block."),
        soft_tokens=len(take(state, "embed_projector.0.bias", path)) // width,
        softmax="joint",
        augmentation="per_dim_sqrt",
    )
    decoder = CodeDecoder(config, sizes, tokenizer.quantizer.dim)
    own = {"soft": "embed_projector.0.weight", "soft_bias": "embed_projector.0.bias"}

    def find(key: str) -> Tensor:
        if key == "table":
            return torch.cat([table[:1], table[len(PLAIN) :]])
        if key == "encoder.bias" and not config.encoder_layers:
            return decoder.encoder.bias.detach()
        return take(state, own.get(key) or t5_key(key) or key, path)

    fill(decoder, find, path)
    return decoder
