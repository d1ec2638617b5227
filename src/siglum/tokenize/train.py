"""Training of the tokenizer: fusion module and codebooks under L_cl + beta L_rq + gamma L_mse + lambda L_rank."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Unpack, cast

import torch
from torch import Tensor

from siglum import dist
from siglum.config import FusionConfig, TokenizerConfig, config_fingerprint
from siglum.cuda_graph_step import GraphedStep
from siglum.files import fingerprint
from siglum.fuse.contrastive import DeviceFeatures, contrastive_loss, embed, kinds_of
from siglum.fuse.modules import Fusion
from siglum.loop import Keeping, Metrics, PairTraining, adam, cosine_lr, seed_of, set_lr, train
from siglum.tokenize.base import Quantiser, build_quantiser
from siglum.tokenize.losses import alignment_loss, codebook_loss, prefix_ranking_loss, residual_loss, straight_through
from siglum.tokenize.rq import ResidualQuantizer, RevivalRows
from siglum.tokenize.survival import token_survival
from siglum.types import SiglumError, Vectors

WATCHED_BEAM, WATCHED_PAIRS = 20, 2000
"""What the log's survival is measured with."""


@dataclass(slots=True)
class Tokenizer:
    """Fusion module and quantiser, which belong together: one makes the vectors the other was fitted to."""

    fusion: Fusion
    quantizer: Quantiser
    history: list[Metrics] = field(default_factory=list)

    def fingerprint(self) -> str:
        """Return the fingerprint of all weights and codewords, and of how items are coded with them."""
        weights = {
            **self.fusion.state_dict(),
            **{f"code.{name}": value for name, value in self.quantizer.weights().items()},
        }
        config = self.quantizer.config
        how: list[object] = [] if config.assign_beam == 1 else [config.assign_beam]  # the same codewords, other codes
        how += [] if config.kind == "residual" else [config.kind]
        return fingerprint(*[part for name in sorted(weights) for part in (name, weights[name])], *how)

    def codebooks(self) -> list[Tensor]:
        """Return the codebooks without gradient, modality first; none where prefixes have no vectors."""
        return self.quantizer.books()


def tokenizer_losses(
    quantizer: ResidualQuantizer,
    query_PD: Tensor,
    target_PD: Tensor,
    target_id_P: Tensor,
    modality_P: Tensor,
    fusion: FusionConfig,
) -> tuple[dict[str, Tensor], list[Tensor], Tensor]:
    """Return the losses of one batch (eq. cb_full), the residuals and the codes of queries then targets."""
    config = quantizer.config
    kind = modality_P if fusion.negatives == "modality" else None
    both, kinds = torch.cat([query_PD, target_PD]), torch.cat([modality_P, modality_P])
    codes, residuals = quantizer.assign(both, kinds)
    chosen = quantizer.codewords(codes)
    number = len(query_PD)
    losses = {"rq": residual_loss(residuals, chosen, quantizer.first_residual)}
    if query_PD.requires_grad:  # with fixed vectors L_cl is a constant
        losses["cl"] = contrastive_loss(
            query_PD, target_PD, target_id_P, fusion.temperature, kind_P=kind, smoothing=fusion.smoothing
        )
    if config.update == "grad":
        losses["codebook"] = codebook_loss(residuals, chosen)
    full = straight_through(chosen.sum(1, keepdim=True), both)[:, 0]
    losses["mse"] = alignment_loss(full[:number], full[number:])
    if config.rank_weight > 0:
        all_x, all_codes, all_id = dist.gather(target_PD), dist.gather(codes[number:]), dist.gather(target_id_P)
        partial = chosen[number:].cumsum(1) if dist.world() == 1 else quantizer.partial_sums(all_codes)
        if config.rank_straight_through:
            partial = straight_through(partial, all_x)
        place = first_places(all_id)
        repeat = place != torch.arange(len(place), device=place.device)
        positive = place[dist.rank() * number :][:number]
        other = None if kind is None else kind[:, None] != dist.gather(kind)[None, :]
        losses["rank"] = prefix_ranking_loss(
            query_PD, all_x, partial, all_codes, positive, repeat, config, quantizer.first_residual, other
        )
    return losses, residuals, codes


def first_places(target_id_N: Tensor) -> Tensor:
    """Return for every target where it stands first in the batch: a repeated target is one candidate, not two."""
    ordered_N, place_N = target_id_N.sort(stable=True)
    return place_N[torch.searchsorted(ordered_N, target_id_N)]


def total_loss(losses: dict[str, Tensor], config: TokenizerConfig, rank_weight: float | Tensor) -> Tensor:
    """L_total (eq. stage1) with `rank_weight` for lambda, which rises during the warm-up."""
    weights = {
        "cl": 1.0,
        "rq": config.rq_weight,
        "codebook": config.rq_weight,
        "mse": config.mse_weight,
        "rank": rank_weight,
    }
    return torch.stack([weights[name] * loss for name, loss in losses.items()]).sum()


def fit_tokenizer(
    vectors: Vectors,
    fusion: Fusion,
    config: TokenizerConfig,
    *,
    seed: int = 0,
    device: str = "cpu",
    graphs: bool = True,
    **keeping: Unpack[Keeping],
) -> Tokenizer:
    """Train codebooks (and the fusion module, if `train_fusion`) from the given fusion module on.

    A quantiser that does not train by gradient is fitted once, on the vectors of the fusion module as it is. With
    `space_epochs` the fusion module first learns on by L_cl alone, as it would beside codebooks that send it nothing.
    On one GPU a step is a CUDA graph unless `graphs` is off (see `siglum.cuda_graph_step`); checkpoints are the same.
    """
    if config.space_epochs:
        folder, resume = keeping.get("folder"), keeping.get("resume", False)
        own: Keeping = {"folder": None if folder is None else folder / "space", "resume": resume}
        fusion = fit_tokenizer(vectors, fusion, _alone(config), seed=seed, device=device, graphs=graphs, **own).fusion
    run = TokenizerTraining(vectors, fusion.to(device), config, seed, device, graphs)
    start = fingerprint(*fusion.state_dict().values(), run.pair_q, run.pair_x)
    identity = "-".join([config_fingerprint(config), config_fingerprint(fusion.config), str(seed), start])
    modules = {"fusion": run.fusion, "quantizer": run.quantizer}
    history = train(
        "tokenizer",
        config.epochs if run.quantizer.trains else 0,
        run.epoch,
        modules=modules,
        optimiser=run.optimiser,
        seed=seed,
        identity=identity,
        **keeping,
    )
    if run.optimiser is not None:
        run.optimiser.zero_grad(set_to_none=True)  # gradients would keep a graph's memory
    if config.refit:
        run.fit_codebooks()
    return Tokenizer(run.fusion.eval(), run.quantizer.eval(), history)


def _alone(config: TokenizerConfig) -> TokenizerConfig:
    """Return the settings of `space_epochs`: joint training whose codebooks send no gradient, and are the least."""
    weights = {"rq_weight": 0.0, "mse_weight": 0.0, "rank_weight": 0.0}
    ends = {"epochs": config.space_epochs, "space_epochs": 0, "vocab": (2,), "update": "ema"}
    return replace(config, train_fusion=True, **weights, **ends)  # type: ignore[arg-type]


class TokenizerTraining(PairTraining):
    """The state of one tokenizer training; `epoch` is what the loop calls."""

    def __init__(
        self,
        vectors: Vectors,
        fusion: Fusion,
        config: TokenizerConfig,
        seed: int,
        device: str,
        graphs: bool = True,
    ) -> None:
        super().__init__(vectors, config, device)
        if config.batch_size % dist.world():
            raise SiglumError(f"batch size {config.batch_size} does not divide by {dist.world()} processes.")
        self.fusion, self.config, self.seed = fusion, config, seed
        self.items, self.queries = DeviceFeatures(vectors.items, device), DeviceFeatures(vectors.queries, device)
        watched = vectors.first_pairs("val")
        if len(watched[0]) == 0:
            watched = vectors.pair_query, vectors.pair_item
        self.watched = tuple(torch.as_tensor(rows[:WATCHED_PAIRS]).long().to(device) for rows in watched)
        self.modality = kinds_of(vectors.items, device)
        self.fixed: tuple[Tensor, Tensor] | None = None
        # Of those that do not train, no epoch is run.
        self.quantizer = cast(ResidualQuantizer, build_quantiser(config, fusion.config.dim).to(device))
        trainable = any(True for _ in fusion.parameters())
        if trainable and not (self.quantizer.trains or fusion.config.epochs):
            raise SiglumError(
                f"tokenizer.kind {config.kind} leaves the fusion module as it is, but that is untrained; set"
                " fusion.epochs above 0."
            )
        learns = self.quantizer.trains and config.train_fusion and trainable
        if not learns:
            self.fixed = embed(fusion, self.queries, device), embed(fusion, self.items, device)
        self.fit_codebooks()
        groups: list[tuple[torch.nn.Module | list[torch.nn.Parameter], float, float]] = [
            (list(self.quantizer.codebooks), 1.0, 0.0)
        ]
        if learns:
            groups.append((fusion, config.fusion_lr_scale, config.weight_decay))
        learned = [*self.quantizer.codebooks, *(fusion.parameters() if learns else ())]
        self.parameters = [parameter for parameter in learned if parameter.requires_grad]
        self.optimiser = adam(groups) if self.parameters else None
        self.rank_weight = torch.zeros((), device=device)
        """Lambda times the warm-up ramp, filled before every step."""
        self.revival_rows: RevivalRows | None = None
        """What this epoch's revivals take: the same tensors in every epoch, as a graph knows them by their place."""
        self.graphed: GraphedStep[tuple[dict[str, Tensor], Tensor]] = GraphedStep(device, graphs=graphs)

    def fit_codebooks(self) -> None:
        """Fit codebooks to the space as it is, by k-means."""
        generator = torch.Generator().manual_seed(seed_of(self.seed, "kmeans"))
        query, item = self.fixed or (
            embed(self.fusion, self.queries, self.device),
            embed(self.fusion, self.items, self.device),
        )
        rows = torch.unique(self.pair_x)
        vectors, kinds = item[rows], self.modality[rows]
        if self.config.statistics == "both":
            vectors, kinds = torch.cat([vectors, query[self.pair_q]]), torch.cat([kinds, self.modality[self.pair_x]])
        per_step = self.config.batch_size * (2 if self.config.statistics == "both" else 1)
        self.quantizer.fit(
            vectors, kinds, generator, **({"vectors_per_step": per_step} if self.quantizer.trains else {})
        )

    def _vectors(self, query_rows: Tensor, item_rows: Tensor) -> tuple[Tensor, Tensor]:
        if self.fixed is not None:
            return self.fixed[0][query_rows], self.fixed[1][item_rows]
        return self.fusion(*self.queries[query_rows]), self.fusion(*self.items[item_rows])

    def epoch(self, epoch: int) -> Metrics:
        """Run one pass over the pairs and return mean losses, usage and revivals."""
        self.fusion.train(self.fixed is None)
        generator = torch.Generator().manual_seed(seed_of(self.seed, "tokenizer", epoch))
        sums: dict[str, Tensor] = {}
        work, revival_rows = self.batches("tokenizer", epoch, generator), self.draw_revival_rows(generator)
        used = torch.zeros(sum(self.quantizer.own_sizes), device=self.device)
        for step, rows in work:
            losses, codes = self.step(dist.share(rows), step)
            for name, value in losses.items():
                sums[name] = sums.get(name, torch.zeros((), device=self.device)) + value
            used.index_fill_(0, (codes + self.quantizer.offset_T).flatten(), 1.0)
        sums = {name: dist.sum_over_processes(value) / dist.world() for name, value in sums.items()}
        seen = (dist.sum_over_processes(used) > 0).float().split(self.quantizer.own_sizes)
        metrics: Metrics = {f"loss_{name}": float(value) / self.steps for name, value in sums.items()}
        metrics["usage"] = [round(float(level.mean()), 4) for level in seen]
        metrics["revived"] = int(revival_rows.taken)
        metrics["survival"] = self._survival()
        return metrics

    @torch.no_grad()
    def _survival(self) -> list[float]:
        """Token survival of validation pairs (training pairs where there are none) at WATCHED_BEAM, level by level."""
        query_rows, item_rows = self.watched
        was_training = self.fusion.training
        self.fusion.eval()
        query, item = self._vectors(query_rows, item_rows)
        self.fusion.train(was_training)
        codes = self.quantizer.encode(item, self.modality[item_rows])[:, : len(self.quantizer.own_sizes)]
        shares = token_survival(
            query, codes, list(self.quantizer.codebooks), WATCHED_BEAM, self.quantizer.first_residual
        )
        return [round(share, 4) for share in shares]

    def draw_revival_rows(self, generator: torch.Generator) -> RevivalRows:
        """Draw what an epoch's revivals may need into `revival_rows` and return it."""
        vectors_per_pair = 1 if self.config.statistics == "targets" else 2
        rows = vectors_per_pair * min(self.config.batch_size, len(self.pair_q))
        drawn = self.quantizer.draw_revival_rows(rows, self.steps, generator)
        if self.revival_rows is None:
            self.revival_rows = drawn
        else:
            self.revival_rows.row_M.copy_(drawn.row_M)
            self.revival_rows.taken.zero_()
        return self.revival_rows

    def step(self, rows: Tensor, step: int) -> tuple[dict[str, Tensor], Tensor]:
        """Make a step of this number on these rows of the pairs; return the losses, and the codes of both sides."""
        config, total_steps = self.config, self.config.epochs * self.steps
        self.rank_weight.fill_(config.rank_weight * min(1.0, (step + 1) / max(1.0, config.warmup * total_steps)))
        if self.optimiser is not None:
            set_lr(self.optimiser, cosine_lr(config.lr, 0.1, 0.0, step, total_steps))
        return self.graphed(self._learn, rows, self.optimiser)

    def _learn(self, rows: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Make a step at the learning rate and lambda that are set; a function of the rows, as a graph needs it."""
        target_id = self.pair_x[rows]
        query, target = self._vectors(self.pair_q[rows], target_id)
        losses, residuals, codes = tokenizer_losses(
            self.quantizer, query, target, target_id, self.modality[target_id], self.fusion.config
        )
        if self.optimiser is not None:
            self.optimiser.zero_grad(set_to_none=True)
            total_loss(losses, self.config, self.rank_weight).backward()
            dist.average_gradients(self.parameters)
            self.optimiser.step()
        self._follow(residuals, codes)
        return {name: value.detach() for name, value in losses.items()}, codes

    def _follow(self, residuals: list[Tensor], codes: Tensor) -> None:
        """Move codebooks by what the batch's queries and targets were assigned, and revive the dead."""
        # Pair by pair, so that the rows of several processes join in the order in which one process has them.
        pairs = torch.arange(len(codes), device=self.device).view(2, -1).T
        keep = pairs[:, 1] if self.config.statistics == "targets" else pairs.flatten()
        assert self.revival_rows is not None, "an epoch draws them first"
        taken = self.revival_rows.taken
        self.quantizer.follow_gradient()
        self.forget(self.quantizer.fit_step([r[keep].detach() for r in residuals], codes[keep], self.revival_rows))
        self.revival_rows.taken = taken.copy_(self.revival_rows.taken)

    def forget(self, revived: dict[int, Tensor]) -> None:
        """Clear the optimiser's memory of revived codewords: it belongs to the dead ones."""
        if self.optimiser is None:
            return
        for level, dead_V in revived.items():
            for slot in self.optimiser.state.get(self.quantizer.codebooks[level], {}).values():
                if torch.is_tensor(slot) and slot.ndim == 2:
                    slot.masked_fill_(dead_V[:, None], 0.0)
