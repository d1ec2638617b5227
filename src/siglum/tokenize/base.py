"""What every quantiser offers: vectors become sequences of tokens, and perhaps prefixes have vectors.

A quantiser subclasses `Quantiser`, is registered in `siglum.registry.QUANTISERS` and had by `tokenizer.kind`.
Shapes: N vectors of D numbers; T tokens an item (modality first, where there is one), V_t codes at token t.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from siglum.config import TokenizerConfig
from siglum.registry import QUANTISERS
from siglum.tokenize.disambiguate import disambiguate
from siglum.tokenize.kmeans import kmeans, nearest
from siglum.types import Modality, SiglumError, one_of

NUM_MODALITIES = 3


class Quantiser(nn.Module):
    """Codes of vectors; a subclass has `fit` and `codes_of`, and whatever else it learns as parameters and buffers.

    `sizes` are the vocabularies of all tokens, `own_sizes` of those that say something of a vector: `encode` may number
    equal codes by a last token (see `siglum.tokenize.disambiguate`), whose codewords are zero. Where the vector of a
    prefix is a sum of codewords, `codebooks[t]` is (V_t, D), shallow to deep; else there are none, and prefixes are
    ranked by a decoder alone. With a modality token, level 0 is the modality codebook: its code comes from metadata (or
    is learned), its codeword is subtracted before the first level of the quantiser's own and is part of every
    reconstruction. New vectors are coded by `encode`, at any time; its health is measured by `siglum.measure.health`
    from sizes, codes and codebooks.
    """

    fixed_length: ClassVar[bool] = True
    """Whether all items have as many tokens as there are `sizes`; the index takes no others yet."""
    trains: ClassVar[bool] = False
    """Whether training by gradient goes on from `fit`, which takes what `ResidualQuantizer` has."""

    def __init__(self, config: TokenizerConfig, dim: int, *, geometry: bool = True) -> None:
        """Begin with codewords of zeros, or without any where prefixes have no vectors (`geometry` off)."""
        super().__init__()
        one_of("tokenizer.modality", config.modality, ("metadata", "learned", "none"))
        if config.modality == "learned" and not (config.modality_vector and geometry):
            raise SiglumError("modality learned takes the nearest codeword, so it needs modality_vector; turn that on.")
        self.config, self.dim = config, dim
        self.own_sizes: tuple[int, ...] = (() if config.modality == "none" else (NUM_MODALITIES,)) + tuple(config.vocab)
        self.sizes = self.own_sizes + ((config.disambiguation,) if config.disambiguation else ())
        books = (nn.Parameter(torch.zeros(size, dim), requires_grad=False) for size in self.own_sizes if geometry)
        self.codebooks = nn.ParameterList(books)

    @property
    def has_modality(self) -> bool:
        """Whether the first token is a modality code."""
        return self.config.modality != "none"

    @property
    def first_residual(self) -> int:
        """Position of the first token of the quantiser's own."""
        return int(self.has_modality)

    @property
    def first_geometric(self) -> int:
        """Position of the first token whose codeword is part of a reconstruction's geometry."""
        return 0 if self.config.modality_vector else self.first_residual

    def fit(self, vector_ND: Tensor, modality_N: Tensor | None, generator: torch.Generator) -> None:
        """Learn from the vectors of a collection."""
        raise NotImplementedError

    def codes_of(self, vector_ND: Tensor, modality_N: Tensor | None) -> Tensor:
        """Return the codes (N, T) of as many vectors as are worked on at once."""
        raise NotImplementedError

    @torch.no_grad()
    def encode(self, vector_ND: Tensor, modality_N: Tensor | None = None, batch_size: int = 8192) -> Tensor:
        """Return codes (N, T) without gradient; where equal ones are numbered, those of these vectors are."""
        parts = []
        for start in range(0, len(vector_ND), batch_size):
            rows = slice(start, start + batch_size)
            parts.append(self.codes_of(vector_ND[rows], None if modality_N is None else modality_N[rows]))
        if not parts:
            return torch.zeros(0, len(self.sizes), dtype=torch.long)
        codes_NT, last = torch.cat(parts), self.config.disambiguation
        return disambiguate(codes_NT, last) if last else codes_NT

    def books(self) -> list[Tensor]:
        """Return the codebooks of all tokens without gradient, zeros where codes are numbers; none without geometry."""
        books = [book.detach() for book in self.codebooks]
        return books + [books[0].new_zeros(size, self.dim) for size in self.sizes[len(books) :] if books]

    def check_geometry(self, what: str) -> None:
        """Refuse something that needs vectors of prefixes where there are none."""
        if not len(self.codebooks):
            raise SiglumError(
                f"{what} needs codes whose prefixes have vectors, and those of tokenizer.kind {self.config.kind}"
                " have none."
            )

    def codewords(self, codes_NT: Tensor) -> Tensor:
        """Return the chosen codewords (N, T, D), with gradient to the codebooks."""
        self.check_geometry("a reconstruction")
        # Not book[code]: on several threads the gradient of an index is summed in any order.
        own_NT = codes_NT[:, : len(self.codebooks)]
        chosen_NTD = torch.stack(
            [F.embedding(code_N, book) for code_N, book in zip(own_NT.unbind(1), self.codebooks, strict=True)], 1
        )
        return F.pad(chosen_NTD, (0, 0, 0, codes_NT.shape[1] - own_NT.shape[1]))

    def partial_sums(self, codes_NT: Tensor) -> Tensor:
        """Return the partial reconstructions x̂_l of every item (N, T, D), the vectors of its prefixes."""
        return self.codewords(codes_NT).cumsum(1)

    def decode(self, codes_NT: Tensor) -> Tensor:
        """Return the full reconstructions x̂ (N, D)."""
        return self.codewords(codes_NT).sum(1)

    def weights(self) -> dict[str, Tensor]:
        """Return all that decides codes and reconstructions: what the tokenizer is fingerprinted by."""
        return self.state_dict()

    def modality_codes(self, vector_ND: Tensor, modality_N: Tensor | None) -> Tensor:
        """Return the first token of vectors, from metadata or the nearest codeword (N,)."""
        if self.config.modality == "learned":
            return nearest(vector_ND, self.codebooks[0])
        if modality_N is None:
            raise SiglumError("this tokenizer takes the modality code from metadata, but no modalities were given.")
        return modality_N.long()

    def unknown_kinds(self, modality_N: Tensor) -> list[Modality]:
        """Return the kinds of these items that had no item when the codebooks were fitted, as far as that is known."""
        if self.config.modality != "metadata" or not self.config.modality_vector or not len(self.codebooks):
            return []
        unseen_K = ~self.codebooks[0].any(1)  # the mean of no vectors
        return [Modality(kind) for kind in modality_N.unique().tolist() if unseen_K[kind]]

    def fit_modality(self, vector_ND: Tensor, modality_N: Tensor | None, generator: torch.Generator) -> Tensor:
        """Make the modality codebook and return the modality codes (N,)."""
        book = self.codebooks[0]
        if self.config.modality == "learned":
            book.copy_(kmeans(vector_ND, NUM_MODALITIES, self.config.kmeans_iters, generator))
        label = self.modality_codes(vector_ND, modality_N)
        if self.config.modality != "learned" and self.config.modality_vector:
            count = torch.bincount(label, minlength=NUM_MODALITIES).clamp(min=1)
            book.copy_(torch.zeros_like(book).index_add_(0, label, vector_ND) / count[:, None])
        return label

    def fit_codebook(self, vector_ND: Tensor, size: int, generator: torch.Generator) -> Tensor:
        """Return `size` centroids by k-means on up to `kmeans_per_code` vectors a codeword."""
        wanted = max(size, self.config.kmeans_per_code * size)
        pick = torch.randperm(len(vector_ND), generator=generator)[:wanted].to(vector_ND.device)
        return kmeans(vector_ND[pick], size, self.config.kmeans_iters, generator)


def build_quantiser(config: TokenizerConfig, dim: int) -> Quantiser:
    """Return an unfitted quantiser of the kind that the config names."""
    quantiser: Quantiser = QUANTISERS[config.kind](config, dim)
    if not quantiser.fixed_length:
        raise SiglumError(
            f"tokenizer.kind {config.kind} gives codes of variable length, but an index holds codes of one length only."
        )
    return quantiser
