"""Every item scored from tables, nothing pruned: 2 <q, x̂> - |x̂|^2 is a sum of one number a code and one an item.

Shapes: Q queries, N items, T levels that carry codewords, V codewords of all levels, D numbers a vector.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from siglum.index import Allowed, Index
from siglum.search.beam import Beams
from siglum.search.lookahead import Potential
from siglum.search.ragged.cache import as_rows
from siglum.search.ragged.geometry import Geometry
from siglum.types import SiglumError

NUMBERS = 1 << 17
"""Scores worked on at a time, so that they stay in the cache."""
SAMPLE = 16
"""One item in so many is scored first, to know what score the others must reach."""


class Scan:
    """The codes of all items, unpacked, and the squared lengths of their reconstructions; made once an index."""

    def __init__(self, geometry: Geometry, index: Index) -> None:
        """Unpack the codes: 4 bytes a level and item."""
        self.geometry, self.index = geometry, index
        levels = range(geometry.first_geometric, index.levels)
        self.place_NT = torch.empty(len(index), len(levels), dtype=torch.int32)
        self.square_N = torch.empty(len(index))
        for start in range(0, len(index), 1 << 14):
            rows = np.arange(start, min(start + (1 << 14), len(index)))
            part = self.place_NT[start : start + len(rows)]
            for column, level in enumerate(levels):
                part[:, column] = torch.from_numpy(index.column(level, rows) + np.int32(geometry.start[level]))
            whole_ND = F.embedding_bag(part.to(geometry.table_VD.device), geometry.table_VD, mode="sum")
            self.square_N[start : start + len(rows)] = whole_ND.square().sum(-1)
        self.place_NT = self.place_NT.to(geometry.table_VD.device)
        self.square_N = self.square_N.to(geometry.table_VD.device)

    def best(self, query_QD: Tensor, k: int, allowed: Allowed | None = None) -> Beams:
        """Return the leaves of the k best items of every query (more where several share the last score)."""
        rows = None if allowed is None else np.flatnonzero(allowed.rows)
        total, num = len(self.index) if rows is None else len(rows), len(query_QD)
        if not total or not num:
            none = np.zeros(0, np.int64)
            return Beams(none, none, none, np.zeros(0))
        table_VQ = self.geometry.table_VD @ (2 * query_QD.float()).T
        if bool(table_VQ.isnan().any()):
            raise SiglumError("a score is not a number: the query vectors or the codebooks contain NaN.")
        chosen = None if rows is None else torch.as_tensor(rows, device=table_VQ.device)
        least_Q = self._least(table_VQ, k, total, chosen)
        chunk, found = max(NUMBERS // num, 256), []
        for start in range(0, total, chunk):
            span = slice(start, min(start + chunk, total))
            score_nQ = self._scores(table_VQ, span if chosen is None else chosen[span])
            hits = np.flatnonzero((score_nQ >= least_Q).cpu().numpy())
            found.append((hits + start * num, score_nQ.flatten()[as_rows(hits, score_nQ.device)].cpu().numpy()))
        flat, score = (np.concatenate(column) for column in zip(*found, strict=True))
        place, query = np.divmod(flat, num)
        return self._leaves(query, place if rows is None else rows[place], score.astype(np.float64), k)

    def potential(self, query_QD: Tensor, omega: float, allowed: Allowed | None = None) -> Potential:
        """Return omega times the scores of all items; rows a filter leaves out are worth nothing."""
        table_VQ = self.geometry.table_VD @ (2 * query_QD.float()).T
        gain_QN = np.empty((len(query_QD), len(self.index)), np.float32)
        chunk = max(NUMBERS // max(len(query_QD), 1), 256)
        for start in range(0, len(self.index), chunk):
            span = slice(start, start + chunk)
            gain_QN[:, span] = (omega * self._scores(table_VQ, span)).T.cpu().numpy()
        if allowed is not None:
            gain_QN[:, ~allowed.rows] = -np.inf
        return Potential(gain_QN)

    def _scores(self, table_VQ: Tensor, rows: slice | Tensor) -> Tensor:
        return F.embedding_bag(self.place_NT[rows], table_VQ, mode="sum") - self.square_N[rows, None]

    def _least(self, table_VQ: Tensor, k: int, total: int, chosen: Tensor | None) -> Tensor:
        """Return a score that the k best of every query reach, from a sample spread over the pool (Q,)."""
        step = SAMPLE if total > SAMPLE * 64 * k else max(1, min(SAMPLE, total // (4 * k)))
        rows = slice(0, total, step) if chosen is None else chosen[::step]
        score_nQ = self._scores(table_VQ, rows)
        if len(score_nQ) < k:
            return torch.full_like(score_nQ[0], -torch.inf)
        return score_nQ.topk(k, dim=0).values[-1]

    def _leaves(self, query: np.ndarray, row: np.ndarray, score: np.ndarray, k: int) -> Beams:
        """Return the leaves of the hits whose score is among a query's k best, by query and code order."""
        order = np.lexsort((row, -score, query))
        query, row, score = query[order], row[order], score[order]
        rank = np.arange(len(query)) - np.searchsorted(query, query)
        last = score[np.minimum(np.searchsorted(query, query) + k - 1, len(query) - 1)]
        keep = (rank < k) | (score >= last)
        order = np.lexsort((row[keep], query[keep]))
        query, row, score = query[keep][order], row[keep][order], score[keep][order]
        codes = self.index.codes(row)
        new = np.append(True, (query[1:] != query[:-1]) | (codes[1:] != codes[:-1]).any(1))[: len(row)]
        heads = np.flatnonzero(new)
        ends = np.append(heads, len(row))[1:] - 1
        return Beams(query[heads], row[heads], row[ends] + 1, score[heads])
