"""Keys and values of all prefixes met so far, never moved: a prefix finds its ancestors by their row numbers.

Shapes: R rows, P paths, T positions run together, s positions kept before them, I heads x d_kv, H heads, K d_kv.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from siglum.search.fast.network import Network


class Cache:
    """One table of keys and values a layer and position; `step` adds a position, `rest` reads many at once."""

    def __init__(self, network: Network) -> None:
        """Start empty."""
        self.network = network
        self.tables: list[list[Tensor]] = [[] for _ in network.layers]

    def step(self, layer: int, qkv_RI: Tensor, above: list[Tensor]) -> Tensor:
        """Keep one more position of R prefixes and return what it reads (R, I); `above[t]` are rows at position t."""
        net, at, rows = self.network, len(above), len(qkv_RI)
        # Sums over single rows are too small for a matrix product, and faster in full precision than in half.
        q_RI, own_RI = qkv_RI[:, : net.inner].float(), qkv_RI[:, net.inner :].float().contiguous()
        kept_TRI = _gather(self.tables[layer], above, own_RI)
        self.tables[layer].append(own_RI)
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
        whole = qkv_UI if len(qkv_UI) == paths * length else qkv_UI.index_select(0, place_PT.flatten())
        whole = whole.view(paths, length, 3, net.heads, net.width)
        q, kv = whole[:, :, 0], whole[:, :, 1:]
        if at:
            past = _gather(self.tables[layer], above).view(at, paths, 2, net.heads, net.width)
            kv = torch.cat((past.transpose(0, 1).to(kv.dtype), kv), 1)
        score = (q.transpose(1, 2) @ kv[:, :, 0].permute(0, 2, 3, 1)).float()
        score += net.bias_HTT[:, at : at + length, : at + length]
        read = score.softmax(-1).to(net.dtype) @ kv[:, :, 1].transpose(1, 2)
        flat = read.transpose(1, 2).reshape(paths * length, net.inner)
        return flat if len(qkv_UI) == len(flat) else flat.index_select(0, taken_U)


def _gather(tables: list[Tensor], above: list[Tensor], own: Tensor | None = None) -> Tensor:
    """Return the rows above of every position, and their own last where given (T, R, I)."""
    like = tables[0] if own is None else own
    rows = len(above[0]) if own is None else len(own)
    kept_TRI = like.new_empty(len(above) + (own is not None), rows, like.shape[1])
    for place, (table, chosen) in enumerate(zip(tables, above, strict=False)):
        # Not `table[chosen]`: on a CPU that takes several times as long.
        torch.index_select(table, 0, chosen, out=kept_TRI[place])
    if own is not None:
        kept_TRI[-1] = own
    return kept_TRI


def as_rows(places: np.ndarray, device: torch.device) -> Tensor:
    """Return whole numbers as an index on a device."""
    return torch.as_tensor(places, dtype=torch.long, device=device)
