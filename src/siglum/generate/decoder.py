"""The generator: a query vector becomes soft tokens, T5 reads them and writes one code per level.

Where it reads histories, their items' codes take the place of the soft tokens.
"""

# Shapes: Q queries, D query width, S tokens read, M d_model, L levels, V_l codes of level l, R live rows, H items.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from siglum.config import DecoderConfig
from siglum.generate.histories import HistoryBatch, ReadHistory
from siglum.generate.t5 import Kept, Rows, Stack, has_lone_key
from siglum.types import SiglumError

START = 0
"""Row of the start token; level 0's tokens follow it."""


@dataclass(slots=True)
class DecoderState:
    """Decoding in progress: R live rows, any number per query; `CodeDecoder.step` moves it on by one level."""

    rows: Rows
    kept: list[Kept]
    """What cross-attention reads, per layer, one entry per query however many rows it has."""
    past: list[Kept | None]
    """Keys and values of the positions so far, per layer, one entry per row."""
    level: int = 0
    """The next level to be generated."""

    @property
    def query_R(self) -> Tensor:
        """The query each row belongs to."""
        return self.rows.query_R

    def select(self, parent_R: Tensor) -> DecoderState:
        """Return the state whose row i continues row `parent_R[i]`: rows may be reordered, repeated and left out."""
        if torch.equal(parent_R, torch.arange(len(self.query_R), device=parent_R.device)):
            # Every row goes on alone, as deep in a trie: nothing to copy (`step` replaces the cache).
            return DecoderState(self.rows, self.kept, self.past, self.level)
        past = [None if kv is None else Kept(kv.k[parent_R], kv.v[parent_R]) for kv in self.past]
        return DecoderState(Rows.of(self.query_R[parent_R], self.rows.queries), self.kept, past, self.level)


class CodeDecoder(nn.Module):
    """T5 from query vectors to code sequences, with one tied embedding table for the tokens of all levels."""

    def __init__(
        self, config: DecoderConfig, sizes: tuple[int, ...], query_dim: int, generator: torch.Generator | None = None
    ) -> None:
        """Build for `sizes[l]` codes at level l, drawing parameters from `generator` (by default one seeded with 0)."""
        super().__init__()
        if not sizes or min(sizes) < 1 or config.soft_tokens < 1 or config.decoder_layers < 1:
            raise SiglumError(
                f"a decoder needs levels with codes, a soft token and a decoder layer, but was given sizes {sizes}, "
                f"{config.soft_tokens} soft tokens and {config.decoder_layers} decoder layers."
            )
        self.config, self.sizes, self.query_dim = config, tuple(sizes), query_dim
        self.scale: float = config.d_model**-0.5
        soft_rows = 0 if config.history.items else config.soft_tokens * config.d_model
        self.soft = nn.Parameter(torch.empty(soft_rows, query_dim))
        self.soft_bias = nn.Parameter(torch.empty(soft_rows))
        self.table = nn.Parameter(torch.empty(1 + sum(sizes), config.d_model))
        if config.history.items:
            self.user = nn.Parameter(torch.empty(config.history.users, config.d_model))
            self.aim = nn.Parameter(torch.empty(query_dim, 2 * config.d_model))
            self.aim_bias = nn.Parameter(torch.empty(query_dim))
            self.register_buffer("ridge", torch.zeros(query_dim, 2 * config.d_model + 1))
            self.ridge: Tensor
            """The same map in closed form, its constant last; zeros until `fit_ridge`."""
        self.encoder = Stack(config, config.encoder_layers, cross=False)
        self.decoder = Stack(config, config.decoder_layers, cross=True)
        offset = torch.tensor([1, *sizes]).cumsum(0)[:-1]
        self.register_buffer("token_offset_L", offset, persistent=False)
        self.token_offset_L: Tensor
        self.initialise(generator or torch.Generator().manual_seed(0))

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Draw all parameters anew, with T5's standard deviations."""
        c = self.config
        std = {
            "q": (c.d_model * c.d_kv) ** -0.5,
            "k": c.d_model**-0.5,
            "v": c.d_model**-0.5,
            "o": (c.heads * c.d_kv) ** -0.5,
            "wi": c.d_model**-0.5,
            "wo": c.d_ff**-0.5,
            "bias": c.d_model**-0.5,
            "table": 1.0,
            # A unit query then gives soft tokens of variance 1, which is what T5's blocks expect of embeddings.
            "soft": 1.0,
            "soft_bias": 0.0,
            "user": 1.0,
            "aim": (2 * c.d_model) ** -0.5,
            "aim_bias": 0.0,
        }
        for name, parameter in self.named_parameters():
            kind = name.rpartition(".")[2]
            if kind == "scale":
                parameter.fill_(1.0)
            else:
                parameter.copy_(std[kind] * torch.randn(parameter.shape, generator=generator))

    @torch.no_grad()
    def initialise_from_codewords(self, codebooks: Sequence[Tensor | None], generator: torch.Generator) -> None:
        """Start token embeddings from one random projection of the normalised codewords (V_l, D).

        Neighbouring codewords get neighbouring embeddings of the ordinary standard deviation 1. A level without a
        codebook (None) and codewords that are zero keep the start they have.
        """
        if len(codebooks) != len(self.sizes):
            raise SiglumError(f"the decoder has {len(self.sizes)} levels, but {len(codebooks)} codebooks were given.")
        projections: dict[int, Tensor] = {}
        for level, codebook in enumerate(codebooks):
            if codebook is None:
                continue
            if codebook.ndim != 2 or len(codebook) != self.sizes[level]:
                raise SiglumError(
                    f"level {level} has {self.sizes[level]} codes, but its codebook has shape {tuple(codebook.shape)}."
                )
            width = codebook.shape[1]
            if width not in projections:
                projections[width] = torch.randn(width, self.config.d_model, generator=generator)
            unit_VD = F.normalize(codebook.detach().float().cpu(), dim=1)
            there = unit_VD.any(1)
            if there.any():
                row_VM = unit_VD[there] @ projections[width]
                row_VM /= row_VM.square().mean().sqrt()
                self.table[self._tokens(level)][there.to(self.table.device)] = row_VM.to(self.table)

    def parameter_count(self) -> int:
        """Return the number of parameters; those behind a lone soft token's softmax are not trained."""
        return sum(parameter.numel() for parameter in self.parameters())

    def encode(self, query_QD: Tensor) -> Tensor:
        """Return the memory (Q, S, M) that the decoder reads."""
        memory_QSM: Tensor = self.encoder(self.soft_tokens(query_QD))
        return memory_QSM

    def read(self, history: HistoryBatch) -> ReadHistory:
        """Return the memory of histories, and which of its tokens are there."""
        if not self.config.history.items:
            raise SiglumError("this decoder reads vectors, not histories; set decoder.history.items above 0.")
        queries = len(history.mask_QH)
        tokens_QSM = F.embedding(self.token_ids(history.codes_QHT).flatten(1), self.table)
        first_QM = self.table[START].expand(queries, -1)
        if history.user_Q is not None and len(self.user):
            own_QM = F.embedding(history.user_Q.clamp(min=0), self.user)
            first_QM = torch.where((history.user_Q >= 0)[:, None], own_QM, first_QM)
        there = history.mask_QH.repeat_interleave(len(self.sizes), 1)
        mask_QS = torch.cat([there.new_ones(queries, 1), there], 1)
        states: Tensor = self.encoder(torch.cat([first_QM[:, None], tokens_QSM], 1), mask_BT=mask_QS)
        return ReadHistory(states, mask_QS)

    def aimed(self, read: ReadHistory, *, ridge: bool = False) -> Tensor:
        """Return where the learned map of encoder states aims, or that of the ridge regression, unit vectors (Q, D)."""
        weight, bias = (self.ridge[:, :-1], self.ridge[:, -1]) if ridge else (self.aim, self.aim_bias)
        return F.normalize(F.linear(read.pooled(len(self.sizes)), weight, bias).float(), dim=-1)

    def soft_tokens(self, query_QD: Tensor) -> Tensor:
        """Return the soft tokens (Q, S, M) of the queries."""
        if self.config.history.items:
            raise SiglumError("this decoder reads histories of items, not vectors; ask with an EncodedQuery.")
        if query_QD.ndim != 2 or query_QD.shape[1] != self.query_dim:
            raise SiglumError(f"queries must have shape (Q, {self.query_dim}), but have {tuple(query_QD.shape)}.")
        return F.linear(query_QD, self.soft, self.soft_bias).view(-1, self.config.soft_tokens, self.config.d_model)

    def forward(self, query: Tensor | ReadHistory, codes_QL: Tensor) -> list[Tensor]:
        """Return the logits (Q, V_l) of every level given the true codes before it; the last code is not read.

        A query is a vector (Q, D), or a history that `read` has read.
        """
        hidden_LQM = self._teach(query, codes_QL).unbind(1)
        _, *tables = torch.split(self.table, [1, *self.sizes])
        return [F.linear(hidden_QM, table) for hidden_QM, table in zip(hidden_LQM, tables, strict=True)]

    def joint_logits(self, query: Tensor | ReadHistory, codes_QL: Tensor) -> Tensor:
        """Return the logits (Q, L, 1 + sum of sizes) over all tokens, the start token first, as `forward` does."""
        return F.linear(self._teach(query, codes_QL), self.table)

    def token_ids(self, codes_QL: Tensor) -> Tensor:
        """Return the table rows of codes, the targets of `joint_logits`."""
        return codes_QL + self.token_offset_L

    def check_states(self, states: Tensor) -> None:
        """Refuse what no encoder of this decoder's shape made (Q, S, M)."""
        lone = has_lone_key(self.config)
        if states.shape[2] != self.config.d_model or (lone and states.shape[1] != 1):
            raise SiglumError(
                f"this decoder reads {'one state' if lone else 'states'} of"
                f" {self.config.d_model} numbers a query, but was given {tuple(states.shape)}."
            )

    @torch.no_grad()
    def start(self, states: Tensor, mask_QS: Tensor | None = None) -> DecoderState:
        """Begin decoding with one row per query: a vector (Q, D), or what an encoder made of it (Q, S, M)."""
        if self.training:
            raise SiglumError("decoding step by step needs evaluation mode; call eval() on the decoder first.")
        if states.ndim == 3:
            self.check_states(states)
        query_R = torch.arange(len(states), device=states.device)
        kept = self.decoder.keep(self.encode(states) if states.ndim == 2 else states, mask_QS)
        return DecoderState(Rows.of(query_R, len(states)), kept, [None] * len(kept))

    @torch.no_grad()
    def step(self, state: DecoderState, token_R: Tensor | None, level: int) -> Tensor:
        """Read every row's code of the level before (None at level 0), move `state` on, and return hidden (R, M).

        The hidden states carry T5's scaling already; hand them to `level_logits` or `joint_log_softmax`.
        """
        if level != state.level or level >= len(self.sizes) or (token_R is None) != (level == 0):
            raise SiglumError(
                f"a step at level {level} of {len(self.sizes)} does not follow a state at level {state.level}; "
                "give levels in order, with no token at level 0 and one per row after that."
            )
        id_R = (
            torch.full_like(state.query_R, START)
            if token_R is None
            else token_R.long() + self.token_offset_L[level - 1]
        )
        hidden_R1M, past = self.decoder.step(F.embedding(id_R, self.table)[:, None], state.kept, state.past, state.rows)
        state.past, state.level = list(past), level + 1
        return hidden_R1M[:, 0] * self.scale

    def level_logits(self, hidden_RM: Tensor, level: int) -> Tensor:
        """Return the logits (R, V_l) of one level from what `step` returned."""
        return F.linear(hidden_RM, self.table[self._tokens(level)])

    def joint_log_softmax(self, hidden_RM: Tensor, level: int) -> Tensor:
        """Return log-probabilities (R, V_l) of one level's codes where all tokens of the table compete."""
        return F.linear(hidden_RM, self.table).log_softmax(-1)[:, self._tokens(level)]

    def _teach(self, query: Tensor | ReadHistory, codes_QL: Tensor) -> Tensor:
        """Return scaled hidden states (Q, L, M) under teacher forcing."""
        memory, mask = query if isinstance(query, ReadHistory) else (self.encode(query), None)
        if codes_QL.shape != (len(memory), len(self.sizes)):
            raise SiglumError(
                f"codes must have shape ({len(memory)}, {len(self.sizes)}), but have {tuple(codes_QL.shape)}."
            )
        id_QL = F.pad(self.token_ids(codes_QL)[:, :-1], (1, 0), value=START)
        kept = self.decoder.keep(memory, mask)
        hidden_QLM: Tensor = self.decoder(F.embedding(id_QL, self.table), kept)
        return hidden_QLM * self.scale

    def _tokens(self, level: int) -> slice:
        offset = 1 + sum(self.sizes[:level])
        return slice(offset, offset + self.sizes[level])
