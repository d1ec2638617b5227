"""The peers with the same weights: beam search of Hugging Face transformers, and of CTranslate2.

Shapes: Q queries, D numbers a vector, T tokens an item, B beam.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from siglum.generate.decoder import START, CodeDecoder
from siglum.generate.weights import t5_key
from siglum.index import Index
from siglum.lab.speed.pool import K, Pool
from siglum.lab.speed.systems import TYPES
from siglum.search.beam import Beams, rank_items
from siglum.types import SiglumError


def as_t5(decoder: CodeDecoder) -> Any:
    """Return transformers' T5 with a decoder's weights; soft tokens are its `inputs_embeds`."""
    import transformers

    config = decoder.config
    shape: dict[str, Any] = {
        "vocab_size": 1 + sum(decoder.sizes),
        "d_model": config.d_model,
        "d_kv": config.d_kv,
        "d_ff": config.d_ff,
        "num_heads": config.heads,
        "num_layers": config.encoder_layers,
        "num_decoder_layers": config.decoder_layers,
        "decoder_start_token_id": START,
        "pad_token_id": START,
        "eos_token_id": None,
    }
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**shape)).eval()
    theirs = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            key = "shared.weight" if name == "table" else t5_key(name)
            if key is not None and key in theirs:  # without encoder layers their encoder has no bias
                theirs[key].copy_(parameter)
    return model


class PrefixTree:
    """The trie of an index as nested dictionaries that end where one code sequence is left: `prefix_allowed_tokens_fn`.

    Called with the number of the query, which it does not need, and the tokens so far (t,), the start token first.
    """

    def __init__(self, index: Index, offset_T: list[int]) -> None:
        """Build from the index's sorted codes; `first_T[l]` is the token of level l's code 0."""
        codes_NT = index.codes()
        fresh = np.append(True, (codes_NT[1:] != codes_NT[:-1]).any(1))
        self.tokens_NT = codes_NT[fresh] + np.array(offset_T)
        same = np.cumprod(self.tokens_NT[1:] == self.tokens_NT[:-1], 1).sum(1)
        depth_N = np.maximum(np.append(0, same), np.append(same, 0)).tolist()
        self.root: dict[int, Any] = {}
        for row, (path, depth) in enumerate(zip(self.tokens_NT.tolist(), depth_N, strict=True)):
            node = self.root
            for token in path[:depth]:
                node = node.setdefault(token, {})
            node[path[depth]] = row

    def __call__(self, query: int, tokens: Tensor) -> list[int]:
        """Return the tokens that may follow."""
        node: Any = self.root
        for token in tokens.tolist()[1:]:
            node = node[token]
            if isinstance(node, int):
                return [int(self.tokens_NT[node, len(tokens) - 1])]
        return list(node)


class HuggingFace:
    """`generate` with beams and `prefix_allowed_tokens_fn`: log P over all tokens at once, no geometry."""

    reference: str | None = "joint"

    def __init__(self, pool: Pool, dtype: str, device: str) -> None:
        """Copy the weights and build the trie."""
        import transformers

        transformers.logging.set_verbosity_error()
        decoder = pool.decoder().to(device)
        self.pool, self.device, self.soft, self.kind = pool, device, decoder.soft_tokens, TYPES[dtype]
        self.model = as_t5(decoder).to(device, self.kind)
        self.offset_T: list[int] = decoder.token_offset_L.tolist()
        self.tree = PrefixTree(pool.index, self.offset_T)
        self.facts: dict[str, Any] = {}

    @torch.no_grad()
    def search(self, query_QD: Tensor) -> Tensor:
        """Return the best token sequences (Q x B, T + 1), the start token first."""
        beam, levels = self.pool.config.beam, self.pool.index.levels
        found: Tensor = self.model.generate(
            inputs_embeds=self.soft(query_QD.to(self.device)).to(self.kind),
            prefix_allowed_tokens_fn=self.tree,
            num_beams=beam,
            num_return_sequences=beam,
            min_new_tokens=levels,
            max_new_tokens=levels,
            length_penalty=0.0,
            do_sample=False,
        ).cpu()
        return found

    def positions(self, result: Tensor) -> list[np.ndarray]:
        """Return the items of these sequences, best first."""
        index, beam = self.pool.index, self.pool.config.beam
        codes_RT = result[:, 1:].numpy() - np.array(self.offset_T)
        rows = np.arange(len(codes_RT))
        lo, hi = (np.repeat(bound, len(rows)) for bound in index.root)
        for level in range(index.levels):
            kids = index.children(lo, hi, level)
            taken = kids.token == codes_RT[kids.parent, level]
            rows, lo, hi = rows[kids.parent[taken]], kids.lo[taken], kids.hi[taken]
            codes_RT = codes_RT[kids.parent[taken]]
        beams = Beams(rows // beam, lo, hi, -(rows % beam).astype(np.float64))
        return [ranking.position for ranking in rank_items(index, beams, len(result) // beam, K)]


class CTranslate2:
    """Beam search of CTranslate2 in int8 over the same weights, without a trie.

    It takes no vectors: as many tokens as there are soft tokens stand for the query, so only its speed means anything.
    """

    reference: str | None = None

    def __init__(self, pool: Pool, threads: int, folder: Path) -> None:
        """Open the converted weights; the first time, convert them."""
        import ctranslate2

        decoder = pool.decoder()
        if not decoder.config.encoder_layers:
            raise SiglumError("CTranslate2 cannot read a model without encoder layers; measure it with random weights.")
        if not folder.exists():
            fresh = folder.with_name(f"{folder.name}.new")
            convert(as_t5(decoder), fresh)
            fresh.rename(folder)  # a kill leaves no half of a model
        self.levels, self.beam, self.length = pool.index.levels, pool.config.beam, decoder.config.soft_tokens
        self.tokens = len(decoder.table) - 1
        self.translator = ctranslate2.Translator(
            str(folder), device="cpu", compute_type="int8", inter_threads=1, intra_threads=threads
        )
        self.facts: dict[str, Any] = {}

    def search(self, query_QD: Tensor) -> Any:
        """Return the best sequences a query, of any tokens."""
        # Tokens that depend on the query, so that no two queries are the same.
        seed_Q = query_QD[:, 0].view(torch.int32).abs().tolist()
        source = [[name_of(1 + (seed + place) % self.tokens) for place in range(self.length)] for seed in seed_Q]
        return self.translator.translate_batch(
            source,
            max_batch_size=0,
            beam_size=self.beam,
            num_hypotheses=self.beam,
            length_penalty=0,
            min_decoding_length=self.levels,
            max_decoding_length=self.levels,
        )

    def positions(self, result: Any) -> None:
        """Return nothing: sequences without a trie are no items."""


def convert(model: Any, folder: Path) -> None:
    """Write a T5 as a CTranslate2 folder in int8; the model is of no use afterwards."""
    from ctranslate2.converters.transformers import T5Loader

    # Quantising scales the tensors it is given in place.
    spec, names = T5Loader().get_model_spec(model), [name_of(token) for token in range(model.config.vocab_size)]
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    for role in ("bos_token", "eos_token", "unk_token", "decoder_start_token"):
        setattr(spec.config, role, name_of(START))
    spec.validate()
    spec.optimize(quantization="int8")
    folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))


def name_of(token: int) -> str:
    """Return the name of a token in CTranslate2's vocabulary."""
    return "</s>" if token == START else f"t{token}"
