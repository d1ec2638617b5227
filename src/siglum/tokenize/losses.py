"""The tokenizer's losses as pure functions; every reduction is stated. L_cl stands in `siglum.fuse.contrastive`.

Shapes: Q queries, N targets of the batch, T tokens, K candidates a query, D numbers a vector.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from siglum.config import TokenizerConfig
from siglum.given import check_tensor
from siglum.types import SiglumError, one_of, truth_value, whole_number

NEVER = -1e4
"""A teacher's score that leaves nothing at any temperature in use."""


def residual_loss(residuals: list[Tensor], codeword_NTD: Tensor, first_residual: int = 0) -> Tensor:
    """L_rq (eq. rq_loss): squared distance of each residual to its (fixed) codeword.

    Mean over vectors, over the D numbers and over the residual levels from `first_residual` on, as in GENIUS; the
    paper's sum is this times L * D.
    """
    terms = [
        F.mse_loss(residuals[level], codeword_NTD[:, level].detach()) for level in range(first_residual, len(residuals))
    ]
    return torch.stack(terms).mean()


def codebook_loss(residuals: list[Tensor], codeword_NTD: Tensor) -> Tensor:
    """Pull each codeword to its (fixed) residuals, mean as in L_rq; takes the place of the EMA in mode `grad`."""
    levels = zip(codeword_NTD.unbind(1), residuals, strict=True)
    terms = [F.mse_loss(codeword_ND, residual_ND.detach()) for codeword_ND, residual_ND in levels]
    return torch.stack(terms).mean()


def alignment_loss(query_hat_QD: Tensor, target_hat_QD: Tensor) -> Tensor:
    """L_mse: squared distance of the normalised reconstructions of query and target, mean over pairs and numbers."""
    return F.mse_loss(F.normalize(query_hat_QD, dim=-1), F.normalize(target_hat_QD, dim=-1))


def straight_through(partial_NTD: Tensor, vector_ND: Tensor) -> Tensor:
    """Return partial sums that also pass gradient I to the vector at every level: x̂_l + (x - sg(x))."""
    return partial_NTD + (vector_ND - vector_ND.detach())[:, None]


def candidates(teacher_QN: Tensor, positive_Q: Tensor, out_QN: Tensor, top_k: int, keep_positive: bool) -> Tensor:
    """Return the top-k in-batch candidates of every query (Q, K), best teacher score first.

    `out_QN` (or one row for all, (1, N)) marks targets that are left out: those that already stand earlier in the
    batch, and those of a modality that is not asked for (they come last, if k exceeds the rest). With
    `keep_positive` the query's own target is always among the candidates.
    """
    own = torch.zeros_like(teacher_QN, dtype=torch.bool).scatter(1, positive_Q[:, None], keep_positive)
    score = teacher_QN.masked_fill(out_QN & ~own, -torch.inf)
    pick = score.masked_fill(own, torch.inf).topk(min(top_k, score.shape[1]), dim=1).indices
    order = score.gather(1, pick).argsort(dim=1, descending=True, stable=True)
    return pick.gather(1, order)


def first_of_prefix(prefix_QK: Tensor, number: int) -> Tensor:
    """Mark the first candidate of every distinct prefix (0 to `number` - 1) in each row: sorted by score, the maximum.

    >>> first_of_prefix(torch.tensor([[4, 7, 4, 7, 1]]), 8).tolist()
    [[True, True, False, False, True]]
    """
    place_QK = torch.arange(prefix_QK.shape[1], dtype=torch.int32, device=prefix_QK.device).expand_as(prefix_QK)
    first_QN = place_QK.new_full((len(prefix_QK), number), prefix_QK.shape[1])
    return first_QN.scatter_reduce_(1, prefix_QK, place_QK, "amin").gather(1, prefix_QK) == place_QK


def extend_prefixes(number_N: Tensor, code_N: Tensor) -> Tensor:
    """Number the prefixes that are one code longer from 0 to N - 1; equal numbers mean equal prefixes (N,)."""
    longer_N = number_N * (code_N.max() + 1) + code_N
    return torch.searchsorted(longer_N.sort().values, longer_N)


def prefix_numbers(codes_NT: Tensor, length: int) -> Tensor:
    """Number the prefixes of `length` tokens from 0 to N - 1; equal numbers mean equal prefixes (N,)."""
    number = torch.zeros(len(codes_NT), dtype=torch.long, device=codes_NT.device)
    for level in range(length):
        number = extend_prefixes(number, codes_NT[:, level])
    return number


def listwise_kl(teacher_QK: Tensor, student_QK: Tensor, keep_QK: Tensor, temperature: float) -> Tensor:
    """KL(teacher || student) of two softmaxes over the kept entries of each row, in fp32 log space (Q,).

    Student and kept entries may be those of several levels (L, Q, K), which gives (L, Q).
    """
    out_QK = ~keep_QK
    log_t = (teacher_QK.float() / temperature).masked_fill(out_QK, -torch.inf).log_softmax(-1)
    log_s = (student_QK.float() / temperature).masked_fill(out_QK, -torch.inf).log_softmax(-1)
    gap = (log_t - log_s).masked_fill(out_QK, 0.0)
    return (log_t.exp() * gap).sum(-1)


@torch.no_grad()
def teach(
    query_QD: Tensor,
    target_ND: Tensor,
    positive_Q: Tensor,
    out_QN: Tensor,
    config: TokenizerConfig,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the candidates of every query, the teacher's scores of them (best first) and which are real, each (Q, K).

    Two teachers are controls: `positive` gives everything to the query's own target; `shuffled` deals the fused
    similarities anew among the candidates, so that it is as sharp as `fused` and knows nothing.
    """
    kind = one_of("tokenizer.rank_teacher", config.rank_teacher, ("fused", "positive", "shuffled"))
    all_QN = query_QD @ target_ND.T
    pick_QK = candidates(all_QN, positive_Q, out_QN, config.top_k, config.rank_keep_positive)
    score_QK = all_QN.gather(1, pick_QK)
    own_QK = pick_QK == positive_Q[:, None]
    real_QK = ~out_QN.expand(len(pick_QK), -1).gather(1, pick_QK)
    if config.rank_keep_positive:
        real_QK |= own_QK
    if kind == "positive":
        if not config.rank_keep_positive:
            raise SiglumError(
                "tokenizer.rank_teacher positive needs the positive among the candidates; set"
                " tokenizer.rank_keep_positive=true."
            )
        order_QK = own_QK.int().argsort(dim=1, descending=True, stable=True)
        score_QK = torch.zeros_like(score_QK).masked_fill(~own_QK, NEVER).gather(1, order_QK)
        return pick_QK.gather(1, order_QK), score_QK, real_QK.gather(1, order_QK)
    if kind == "shuffled":  # the scores stay in order, and who has them changes; what is not real stays last
        order_QK = torch.rand_like(score_QK).masked_fill(~real_QK, torch.inf).argsort(dim=1, stable=True)
        pick_QK = pick_QK.gather(1, order_QK)
    return pick_QK, score_QK, real_QK


def prefix_ranking_loss(
    query_QD: Tensor,
    target_ND: Tensor,
    partial_NTD: Tensor,
    codes_NT: Tensor,
    positive_Q: Tensor | None = None,
    repeat_N: Tensor | None = None,
    config: TokenizerConfig | None = None,
    first_residual: int = 0,
    other_QN: Tensor | None = None,
    *,
    by_query: bool = False,
) -> Tensor:
    """L_rank (eq. rpq): prefix ranking distillation, mean over queries and residual levels of KL(pi* || pi-bar).

    The teacher scores a prefix by the best of its candidates, s*(p) = max <q, x_j>; the student by the partial
    reconstruction its candidates share, <q, x̂_l>. Both are softmaxes at temperature tau over the distinct
    prefixes among the top-k in-batch candidates (`rank_form` items: over the candidates themselves). Query i answers
    to target `positive_Q[i]`, by default to target i; `repeat_N` marks targets that stand earlier in the batch already,
    `other_QN` those that are no candidates of a query. Levels before `first_residual` count as part of the prefix
    alone. With `by_query` it is one number a query (Q,).
    """
    config = TokenizerConfig() if config is None else config
    by_query = truth_value("by_query", by_query)
    one_of("tokenizer.rank_form", config.rank_form, ("prefixes", "items"))
    check_tensor("queries", query_QD, "QD")
    positive_Q = torch.arange(len(query_QD), device=query_QD.device) if positive_Q is None else positive_Q
    _check_batch(query_QD, target_ND, partial_NTD, codes_NT, positive_Q, first_residual)
    target_ND, partial_NTD = target_ND.to(query_QD.dtype), partial_NTD.to(query_QD.dtype)
    out_QN = torch.zeros_like(codes_NT[:, 0], dtype=torch.bool)[None] if repeat_N is None else repeat_N[None]
    out_QN = out_QN if other_QN is None else out_QN | other_QN
    pick, teacher, real = teach(query_QD, target_ND, positive_Q, out_QN, config)
    query = query_QD if config.rank_student_gradient else query_QD.detach()
    students, kept = [], []
    prefix = prefix_numbers(codes_NT, first_residual)
    for level, partial_ND in enumerate(partial_NTD.unbind(1)[first_residual:], first_residual):
        against_ND = F.normalize(partial_ND, dim=-1) if config.rank_cosine else partial_ND
        students.append((query @ against_ND.T).gather(1, pick))
        if config.rank_form == "prefixes":
            prefix = extend_prefixes(prefix, codes_NT[:, level])
            kept.append(real & first_of_prefix(prefix[pick], len(prefix)))
    keep = torch.stack(kept) if kept else real
    # All levels at once: on a GPU many small operations cost more than what they compute.
    kl_LQ = listwise_kl(teacher, torch.stack(students), keep, config.temperature)
    loss = kl_LQ.mean(0) if by_query else kl_LQ.mean(1).mean()
    return loss * config.temperature**2 if config.rank_scale_tau2 else loss


def _check_batch(
    query_QD: Tensor, target_ND: Tensor, partial_NTD: Tensor, codes_NT: Tensor, positive_Q: Tensor, first_residual: int
) -> None:
    """Refuse a batch whose parts do not fit together; no value is looked at, so that no device is waited for."""
    check_tensor("targets", target_ND, "ND")
    check_tensor("partial sums", partial_NTD, "NTD")
    check_tensor("codes", codes_NT, "NT", whole=True)
    check_tensor("positives", positive_Q, "Q", whole=True)
    first_residual = whole_number("first_residual", first_residual, 0)
    dim, (targets, levels) = query_QD.shape[-1], codes_NT.shape if codes_NT.ndim == 2 else (-1, 0)
    fits = target_ND.shape == (targets, dim) and partial_NTD.shape == (targets, levels, dim) and query_QD.ndim == 2
    if not (fits and positive_Q.shape == query_QD.shape[:1] and 0 <= first_residual < levels):
        shapes = ", ".join(str(tuple(one.shape)) for one in (query_QD, target_ND, partial_NTD, codes_NT, positive_Q))
        raise SiglumError(
            "prefix ranking takes queries (Q, D), targets (N, D), their partial sums (N, T, D) and codes (N, T), and a"
            f" target of each query (Q,), but was given {shapes} with first_residual {first_residual}."
        )
