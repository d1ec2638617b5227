"""Keys and values of all prefixes met so far, never moved: a prefix finds its ancestors by their row numbers.

Shapes: R rows, P paths, T positions run together, s positions kept before them, I heads x d_kv, H heads, K d_kv.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from siglum.search.ragged.network import Network

CHUNK = 256
"""Rows that attend at a time, so that what they read stays in the cache of a core."""


class Cache:
    """One table of keys and values a layer and position; `step` adds a position, `rest` reads many at once."""

    def __init__(self, network: Network) -> None:
        """Start empty."""
        self.network = network
        self.tables: list[list[Tensor]] = [[] for _ in network.layers]

    def step(self, tables: list[Tensor], qkv_RI: Tensor, above: list[Tensor]) -> Tensor:
        """Add one more position of R prefixes and return what it reads (R, I); `above[t]` are rows of `tables[t]`."""
        pieces = zip(qkv_RI.split(CHUNK), *(rows.split(CHUNK) for rows in above), strict=True)
        read = torch.cat([self._read(tables, piece_RI, rows) for piece_RI, *rows in pieces])
        tables.append(qkv_RI[:, self.network.inner :])
        return read

    def _read(self, tables: list[Tensor], qkv_RI: Tensor, above: list[Tensor]) -> Tensor:
        """Return what prefixes read by attention to those above them and to themselves (R, I)."""
        net, at, rows = self.network, len(above), len(qkv_RI)
        # Sums over single rows are too small for a matrix product, and faster in full precision than in half.
        q_RI, own_RI = qkv_RI[:, : net.inner].float(), qkv_RI[:, net.inner :]
        kept_TRI = _gather(tables, above, own_RI, torch.arange(rows, device=own_RI.device)[None]).float()
        score_TRH = (q_RI * kept_TRI[..., : net.inner]).view(at + 1, rows, net.heads, net.width).sum(-1)
        score_TRH += net.bias_HTT[:, at, : at + 1].T[:, None]
        weight_TRH1 = score_TRH.softmax(0)[..., None]
        values_TRHK = kept_TRI[..., net.inner :].unflatten(-1, (net.heads, net.width))
        read_RHK: Tensor = values_TRHK[0] * weight_TRH1[0]
        for weight, values in zip(weight_TRH1[1:], values_TRHK[1:], strict=True):
            read_RHK.addcmul_(weight, values)
        return read_RHK.flatten(1)

    def rest(self, layer: int, qkv_UI: Tensor, above: list[Tensor], place_PT: Tensor, taken_U: Tensor) -> Tensor:
        """Return what positions of paths read (U, I): they attend to kept rows and to each other.

        Rows are the distinct positions; `place_PT` says which row stands at which position of which path, and
        `taken_U` where in (P, T) each row's own result is found.
        """
        net, at = self.network, len(above)
        paths, length = place_PT.shape
        q_UI, own_UI = qkv_UI[:, : net.inner], qkv_UI[:, net.inner :]
        if len(qkv_UI) < paths * length:
            q_UI = q_UI.index_select(0, place_PT.flatten())
        q_PHTK = q_UI.reshape(paths, length, net.heads, net.width).transpose(1, 2).contiguous()
        kept_SPI = _gather(self.tables[layer], above, own_UI, place_PT.T)
        kept = kept_SPI.view(at + length, paths, 2, net.heads, net.width).permute(2, 1, 3, 0, 4)
        k_PHSK, v_PHSK = kept[0].contiguous(), kept[1]  # strided keys would cost more than their copy
        score = (q_PHTK @ k_PHSK.transpose(2, 3)).float()
        score += net.bias_HTT[:, at : at + length, : at + length]
        flat = (score.softmax(-1).to(net.dtype) @ v_PHSK).transpose(1, 2).reshape(paths * length, net.inner)
        return flat if len(qkv_UI) == len(flat) else flat.index_select(0, taken_U)


def _gather(tables: list[Tensor], above: list[Tensor], own: Tensor, place_TR: Tensor) -> Tensor:
    """Return the rows above of every position, then those at these places among their own (T, R, I)."""
    more, rows = place_TR.shape
    kept_TRI = own.new_empty(len(above) + more, rows, own.shape[1])
    for at, (table, chosen) in enumerate(zip(tables, above, strict=False)):
        # Not `table[chosen]`: on a CPU that takes several times as long.
        torch.index_select(table, 0, chosen, out=kept_TRI[at])
    torch.index_select(own, 0, place_TR.reshape(-1), out=kept_TRI[len(above) :].flatten(0, 1))
    return kept_TRI


def as_rows(places: np.ndarray, device: torch.device) -> Tensor:
    """Return whole numbers as an index on a device."""
    return torch.as_tensor(places, dtype=torch.long, device=device)
