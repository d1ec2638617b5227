"""Siglum's parts in somebody else's training loop: plain torch, with a quantiser and a decoder of one's own."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import siglum

ITEMS, DIM, LEVELS, WORDS, BEAM = 300, 16, 4, 12, 5


def quantise(vectors: Tensor, books: nn.ParameterList) -> tuple[Tensor, Tensor]:
    """Return codes (N, L) and partial sums (N, L, D): the nearest codeword of what the levels before have left."""
    left, codes, sums = vectors, [], []
    for book in books:
        codes.append(torch.cdist(left.detach(), book.detach()).argmin(1))
        sums.append(F.embedding(codes[-1], book))
        left = left - sums[-1]
    return torch.stack(codes, 1), torch.stack(sums, 1).cumsum(1)


def log_probs(decoder: nn.ModuleList, query: Tensor, prefix: Tensor) -> Tensor:
    """Return log P (R, V) of the next code, given queries (R, D) and the codes so far (R, l)."""
    seen = torch.cat([query, F.one_hot(prefix, WORDS).flatten(1).float()], 1)
    return decoder[prefix.shape[1]](seen).log_softmax(-1)


def main() -> None:
    torch.manual_seed(1)
    items = F.normalize(torch.randn(ITEMS, 6) @ torch.randn(6, DIM), dim=-1)
    queries, asked = (F.normalize(items + 0.05 * torch.randn(ITEMS, DIM), dim=-1) for _ in range(2))
    for rank_weight in (0.0, 1.0):
        torch.manual_seed(0)
        books = nn.ParameterList(items[torch.randperm(ITEMS)[:WORDS]] / 2**level for level in range(LEVELS))
        decoder = nn.ModuleList(nn.Linear(DIM + level * WORDS, WORDS) for level in range(LEVELS))
        optimiser = torch.optim.Adam([*books, *decoder.parameters()], lr=0.03)
        for _ in range(80):
            codes, partial = quantise(items, books)
            loss = (partial[:, -1] - items).square().sum(1).mean()
            loss = loss + rank_weight * siglum.prefix_ranking_loss(queries, items, partial, codes)
            for at in range(LEVELS):
                loss = loss + F.nll_loss(log_probs(decoder, queries, codes[:, :at]), codes[:, at])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        codes, _ = quantise(items, books)
        found = siglum.diagnose_codes(codes, books, asked, items, torch.arange(ITEMS), beam=BEAM)
        print(f"rank weight {rank_weight:g}:", *(f"{share:.2f}" for share in found.beam_survival["oracle"]))
    print(found.verdict)
    trie, scorer = siglum.build_trie(codes), lambda query, prefix: log_probs(decoder, query, prefix)
    best = siglum.fused_beam_search(trie, scorer, asked, codebooks=books, omega=10, beam=50, k=10)
    success = sum(row in one.position for row, one in enumerate(best)) / ITEMS
    print(f"fused beam search: the right item is among the first 10 for {success:.2f} of the queries")
    assert success > 0.8


if __name__ == "__main__":
    main()
