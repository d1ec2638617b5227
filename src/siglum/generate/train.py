"""Training of the decoder: query vectors in, code sequences out, cross-entropy over modality and codes.

Shapes: P pairs in a batch, T tokens, D numbers a vector, V_t words at token t.
"""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from siglum.config import DecoderConfig, config_fingerprint
from siglum.cuda_graph_step import GraphedStep
from siglum.device import trains_in_bf16
from siglum.files import fingerprint
from siglum.fuse.contrastive import embed, kinds_of
from siglum.generate.decoder import CodeDecoder
from siglum.generate.histories import ReadHistory
from siglum.generate.query import QueryHead, query_vectors
from siglum.generate.weights import load_t5
from siglum.loop import Keeping, Metrics, PairTraining, adam, cosine_lr, seed_of, set_lr, train
from siglum.tokenize.train import Tokenizer
from siglum.types import Vectors, one_of


def augment_queries(query_PD: Tensor, target_PD: Tensor, kind: str) -> Tensor:
    """Move queries towards their targets by a random share and normalise (GENIUS' query augmentation).

    scalar: normalise(s q + (1 - s) x), one s ~ Beta(2, 2) a pair; per_dim_sqrt: GENIUS' code, square roots of
    one s a number; off: the query itself.
    """
    one_of("decoder.augmentation", kind, ("scalar", "per_dim_sqrt", "off"))
    if kind == "off":
        return query_PD
    shape = query_PD.shape if kind == "per_dim_sqrt" else (len(query_PD), 1)
    two = query_PD.new_full((), 2.0)  # drawn where the queries are; checking its arguments would wait for the device
    share = torch.distributions.Beta(two, two, validate_args=False).sample(shape)
    if kind == "per_dim_sqrt":
        return F.normalize(share.sqrt() * query_PD + (1 - share).sqrt() * target_PD, dim=-1)
    return F.normalize(share * query_PD + (1 - share) * target_PD, dim=-1)


def soft_code_targets(residual_PD: Tensor, codebook_VD: Tensor, temperature: float | Tensor) -> Tensor:
    """Return softmax(-|r - c|^2 / T) over a level's codewords (P, V): neighbours of the true code share its weight."""
    distance = codebook_VD.square().sum(-1) - 2 * residual_PD @ codebook_VD.T
    return (-distance / temperature).softmax(-1)


def decoder_loss(
    decoder: CodeDecoder, query: Tensor | ReadHistory, codes_PT: Tensor, soft: list[Tensor | None] | None = None
) -> Tensor:
    """Cross-entropy, mean over pairs and over the T tokens; `soft` replaces one-hot targets where given.

    Queries are vectors (P, D), or histories that the decoder has read.
    """
    if decoder.config.softmax == "joint":
        logits = decoder.joint_logits(query, codes_PT)
        return F.cross_entropy(logits.flatten(0, 1), decoder.token_ids(codes_PT).flatten())
    losses = []
    for level, level_logits in enumerate(decoder(query, codes_PT)):
        given = None if soft is None else soft[level]
        losses.append(F.cross_entropy(level_logits, codes_PT[:, level] if given is None else given))
    return torch.stack(losses).mean()


def new_decoder(tokenizer: Tokenizer, config: DecoderConfig, seed: int) -> CodeDecoder:
    """Return a freshly initialised decoder for this tokenizer."""
    generator = torch.Generator().manual_seed(seed_of(seed, "decoder init"))
    decoder = CodeDecoder(config, tokenizer.quantizer.sizes, tokenizer.quantizer.dim, generator)
    if config.code_init:
        tokenizer.quantizer.check_geometry("decoder.code_init (false starts at random)")
        decoder.initialise_from_codewords([book.cpu() for book in tokenizer.codebooks()], generator)
    if config.t5_weights:
        load_t5(decoder, Path(config.t5_weights))
    return decoder


def fit_decoder(
    vectors: Vectors,
    tokenizer: Tokenizer,
    config: DecoderConfig,
    *,
    seed: int = 0,
    device: str = "cpu",
    head: QueryHead | None = None,
    graphs: bool = True,
    **keeping: Unpack[Keeping],
) -> tuple[CodeDecoder, list[Metrics]]:
    """Train a decoder on the training pairs; the tokenizer (and the query head, if there is one) stay as they are.

    On one GPU a step is a CUDA graph unless `graphs` is off (see `siglum.cuda_graph_step`); checkpoints are the same.
    """
    run = DecoderTraining(vectors, tokenizer, config, seed, device, head, graphs)
    behind = [] if head is None else [fingerprint(*head.state_dict().values())]
    return run.decoder, run.run([tokenizer.fingerprint(), str(seed), str(len(vectors.pair_query)), *behind], **keeping)


class DecoderTraining(PairTraining):
    """The state of one decoder training; `epoch` is what the loop calls."""

    def __init__(
        self,
        vectors: Vectors,
        tokenizer: Tokenizer,
        config: DecoderConfig,
        seed: int,
        device: str,
        head: QueryHead | None,
        graphs: bool = True,
    ) -> None:
        super().__init__(vectors, config, device)
        self.config, self.seed = config, seed
        self.use_bf16 = trains_in_bf16("decoder.precision", config.precision, device)
        self.quantizer = tokenizer.quantizer
        if config.soft_targets > 0:
            self.quantizer.check_geometry("decoder.soft_targets above 0")
        self.query = self._queries(vectors, tokenizer, head)
        self.item = embed(tokenizer.fusion, vectors.items, device)
        self.modality = kinds_of(vectors.items, device)
        self.codes = self.quantizer.encode(self.item, self.modality)
        self.val_q, self.val_x = (torch.as_tensor(rows).to(device) for rows in vectors.first_pairs("val"))
        self.decoder = new_decoder(tokenizer, config, seed).to(device)
        self.optimiser = adam([(self.decoder, 1.0, config.weight_decay)], betas=(0.9, 0.98))
        self.graphed: GraphedStep[Tensor] = GraphedStep(device, graphs=graphs)

    def run(self, made_from: list[str], patience: int = 0, **keeping: Unpack[Keeping]) -> list[Metrics]:
        """Train to the end, from a state of what it was made from on where there is one."""
        history = train(
            "decoder",
            self.config.epochs,
            self.epoch,
            modules={"decoder": self.decoder},
            optimiser=self.optimiser,
            seed=self.seed,
            identity="-".join([config_fingerprint(self.config), *made_from]),
            patience=patience,
            **keeping,
        )
        self.optimiser.zero_grad(set_to_none=True)  # gradients would keep a graph's memory
        self.decoder.eval()
        return history

    def _queries(self, vectors: Vectors, tokenizer: Tokenizer, head: QueryHead | None) -> Tensor:
        """Return what the decoder is asked with (M, D)."""
        return query_vectors(tokenizer, head, vectors.queries, self.device)

    def epoch(self, epoch: int) -> Metrics:
        """Run one pass over the pairs and return training and validation losses."""
        self.decoder.train()
        generator = torch.Generator().manual_seed(seed_of(self.seed, "decoder", epoch))
        total = torch.zeros((), device=self.device)
        for step, rows in self.batches("decoder", epoch, generator):
            total += self.step(rows, step)
        return {"loss": float(total) / self.steps, **self.validate(epoch)}

    def step(self, rows: Tensor, step: int) -> Tensor:
        """Make a step of this number on these rows of the pairs, and return the loss."""
        config = self.config
        set_lr(self.optimiser, cosine_lr(config.lr, config.lr_end, config.warmup, step, config.epochs * self.steps))
        return self.graphed(self._learn, rows, self.optimiser)

    def _learn(self, rows: Tensor) -> Tensor:
        """Make a step at the learning rate that is set; a function of the rows, as a graph needs it."""
        config = self.config
        query, target = self.query[self.pair_q[rows]], self.item[self.pair_x[rows]]
        codes = self.codes[self.pair_x[rows]]
        mixed = augment_queries(query, target, config.augmentation)
        if config.null_queries > 0:
            mixed = mixed * (torch.rand(len(mixed), 1, device=mixed.device) >= config.null_queries)
        soft = self._soft(target, codes) if config.soft_targets > 0 else None
        with torch.autocast(torch.device(self.device).type, torch.bfloat16, enabled=self.use_bf16):
            loss = decoder_loss(self.decoder, mixed, codes, soft)
        self._descend(loss)
        return loss.detach()

    def _descend(self, loss: Tensor) -> None:
        """Follow the gradient of a loss by one step."""
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        if self.config.clip > 0:
            torch.nn.utils.clip_grad_norm_(self.decoder.parameters(), self.config.clip)
        self.optimiser.step()

    @torch.no_grad()
    def _soft(self, target_PD: Tensor, codes_PT: Tensor) -> list[Tensor | None]:
        partial = self.quantizer.partial_sums(codes_PT)
        soft: list[Tensor | None] = [None] * self.quantizer.first_residual
        for level in range(self.quantizer.first_residual, len(self.quantizer.own_sizes)):
            residual = target_PD - partial[:, level - 1] if level else target_PD
            temperature: float | Tensor = self.config.soft_targets
            if self.config.soft_relative:
                # Deep levels of a small collection may code it without any error; T must stay above 0.
                temperature = temperature * residual.square().sum(-1).mean().double().clamp(min=1e-12)
            soft.append(soft_code_targets(residual, self.quantizer.codebooks[level], temperature))
        return soft + [None] * (codes_PT.shape[1] - len(soft))

    def asked(self, rows: Tensor) -> Tensor | ReadHistory:
        """Return the queries of these rows as the decoder takes them."""
        return self.query[rows]

    @torch.no_grad()
    def validate(self, epoch: int) -> Metrics:
        """Return what the decoder says of validation pairs, where there are some."""
        if len(self.val_q) == 0:
            return {}
        self.decoder.eval()
        losses, hits = (torch.zeros(len(self.quantizer.sizes), device=self.device) for _ in range(2))
        for start in range(0, len(self.val_q), 1024):
            codes = self.codes[self.val_x[start : start + 1024]]
            for level, logits in enumerate(self.decoder(self.asked(self.val_q[start : start + 1024]), codes)):
                losses[level] += F.cross_entropy(logits, codes[:, level], reduction="sum")
                hits[level] += (logits.argmax(-1) == codes[:, level]).sum()
        count = len(self.val_q)
        per_level = [round(value, 4) for value in (losses / count).tolist()]
        return {
            "val_loss": float(losses.mean() / count),
            "val_loss_levels": per_level,
            "val_accuracy": [round(v, 4) for v in (hits / count).tolist()],
        }
