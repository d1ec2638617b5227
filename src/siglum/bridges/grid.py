"""The semantic ids of GRID (snap-research/GRID): one tensor of codes, levels first, with a digit against duplicates."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from siglum.bridges.items import CodedItems, checked_codes
from siglum.given import as_file
from siglum.types import SiglumError


def read_grid(path: str | Path, levels: int | None = None) -> CodedItems:
    """Read `merged_predictions_tensor.pt`, the semantic ids of GRID's items, which are numbered from 0.

    GRID writes levels by items, and before it numbers duplicates in a last level, items by levels: the shorter side
    is taken for the levels unless their number is given. Vocabularies are as large as the codes need.
    """
    import torch

    path = as_file(path)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise SiglumError(f"{path} does not exist.") from error
    except Exception as error:  # torch raises almost anything on a damaged file, IndexError included
        raise SiglumError(
            f"{path} is not a torch file of plain tensors ({type(error).__name__}); of what GRID writes, give"
            " merged_predictions_tensor.pt."
        ) from error
    if not isinstance(found, torch.Tensor):
        raise SiglumError(f"{path} holds a {type(found).__name__}, but semantic ids of GRID are one tensor.")
    codes = checked_codes(found.numpy(), str(path))
    wanted = min(codes.shape) if levels is None else levels
    if wanted not in codes.shape or (levels is None and codes.shape[0] == codes.shape[1]):
        raise SiglumError(f"{path} holds {codes.shape} codes; say how many levels they have, one of these numbers.")
    codes_NL = np.ascontiguousarray(codes if codes.shape[1] == wanted else codes.T)
    sizes = tuple(int(top) + 1 for top in codes_NL.max(0))
    return CodedItems([str(row) for row in range(len(codes_NL))], codes_NL, sizes)
