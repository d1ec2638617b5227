"""Linear maps without bias in three precisions, their weights laid out once for the processor they run on.

Shapes: R rows, K numbers in, N numbers out.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from siglum.generate.t5 import EPS
from siglum.types import SiglumError, one_of

PRECISIONS = ("fp32", "bf16", "int8")
"""What weights and the inputs of products are held in."""


def inverse_rms(x_RK: Tensor) -> Tensor:
    """Return what rows are to be multiplied by to have a mean square of 1 (R, 1)."""
    norm_R1: Tensor = torch.linalg.vector_norm(x_RK, 2, -1, keepdim=True)
    return norm_R1.square_().div_(x_RK.shape[-1]).add_(EPS).rsqrt_()


class Linear(Protocol):
    """Multiplies rows by a matrix."""

    def __call__(self, x_RK: Tensor, scale_R1: Tensor | None = None) -> Tensor:
        """Return the products (R, N) of the rows, each first multiplied by its own scale where given."""


def activation_type(precision: str) -> torch.dtype:
    """Return the type that rows have between products; int8 rows are quantised at the door of each product."""
    one_of("search.precision", precision, PRECISIONS)
    return torch.bfloat16 if precision == "bf16" else torch.float32


def attention_type(precision: str) -> torch.dtype:
    """Return the type that attention reads queries, keys and values in; int8 has no attention of its own."""
    return torch.float32 if precision == "fp32" else torch.bfloat16


def build_linear(weight_NK: Tensor, precision: str) -> Linear:
    """Return the map by `weight_NK`."""
    return RowInt8(weight_NK) if precision == "int8" else Packed(weight_NK.to(activation_type(precision)))


def build_feed_forward(wide_FM: Tensor, narrow_MF: Tensor, precision: str) -> Linear:
    """Return the map widen, ReLU, narrow."""
    if precision == "int8":
        return FeedInt8(wide_FM, narrow_MF)
    dtype = activation_type(precision)
    return Feed(Packed(wide_FM.to(dtype), relu=True), Packed(narrow_MF.to(dtype)))


class Packed:
    """A product in the type of the weights; on a CPU in oneDNN's layout, a tenth faster than torch's own."""

    def __init__(self, weight_NK: Tensor, *, relu: bool = False) -> None:
        """Lay the weights out."""
        self.dtype, self.relu = weight_NK.dtype, relu
        self.packed = weight_NK.device.type == "cpu" and torch.backends.mkldnn.is_available()
        weight_NK = weight_NK.contiguous()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight_NK, None) if self.packed else weight_NK

    def __call__(self, x_RK: Tensor, scale_R1: Tensor | None = None) -> Tensor:
        """Return the products (R, N)."""
        x_RK = (x_RK if scale_R1 is None else x_RK * scale_R1).to(self.dtype)
        if not self.packed:
            y_RN = F.linear(x_RK, self.weight)
            return y_RN.relu_() if self.relu else y_RN
        after, rows = "relu" if self.relu else "none", len(x_RK)
        if rows == 1:  # a lone row would be added up in another order than the same row among others
            x_RK = x_RK.expand(2, -1)
        z_RN: Tensor = torch.ops.mkldnn._linear_pointwise(x_RK.contiguous(), self.weight, None, after, [], "")
        return z_RN[:rows]


class Feed:
    """Two products with ReLU between them."""

    def __init__(self, wide: Packed, narrow: Packed) -> None:
        """Take the products; the first has the ReLU."""
        self.wide, self.narrow = wide, narrow

    def __call__(self, x_RK: Tensor, scale_R1: Tensor | None = None) -> Tensor:
        """Return the products (R, N)."""
        return self.narrow(self.wide(x_RK, scale_R1))


class RowInt8:
    """Eight-bit product: every row of the input has its own scale, every output its own, sums are whole numbers.

    A row's result depends on that row alone, so that results do not depend on the batch.
    """

    def __init__(self, weight_NK: Tensor, *, relu: bool = False, positive: bool = False) -> None:
        """Quantise and lay out the weights; `positive`: inputs are never negative and may be overwritten."""
        if weight_NK.device.type != "cpu" or not hasattr(torch.ops.onednn, "qlinear_pointwise"):
            raise SiglumError("precision int8 needs a CPU and a torch built with oneDNN; use bf16 or fp32.")
        self.scale_N = (weight_NK.abs().amax(1).clamp(min=1e-20) / 127).contiguous()
        weight = (weight_NK / self.scale_N[:, None]).round().to(torch.int8).contiguous()
        self.packed = torch.ops.onednn.qlinear_prepack(weight, None)
        self.zero_N = torch.zeros(len(weight_NK), dtype=torch.int32)
        self.relu, self.positive = relu, positive

    def __call__(self, x_RK: Tensor, scale_R1: Tensor | None = None) -> Tensor:
        """Return the products (R, N) in full precision."""
        y_RN, own_R1 = self.product(x_RK)
        return y_RN.mul_(own_R1 if scale_R1 is None else own_R1 * scale_R1)

    def product(self, x_RK: Tensor) -> tuple[Tensor, Tensor]:
        """Return the products (R, N) up to a scale of each row, and the scales (R, 1)."""
        x_RK = x_RK.float()
        top_R1 = (x_RK if self.positive else x_RK.abs()).amax(-1, keepdim=True)
        own_R1 = top_R1.clamp_(min=1e-20).div_(255 if self.positive else 127)
        level_RK = x_RK.mul_(own_R1.reciprocal()).sub_(128) if self.positive else x_RK * own_R1.reciprocal()
        # Only unsigned inputs have fast kernels, and only signed numbers are converted fast: the bit between them.
        byte_RK = level_RK.round_().to(torch.int8).view(torch.uint8).bitwise_xor_(128)
        y_RN: Tensor = torch.ops.onednn.qlinear_pointwise(
            byte_RK, 1.0, 0 if self.positive else 128, self.packed, self.scale_N, self.zero_N, None,
            1.0, 0, torch.float32, "relu" if self.relu else "none", [], "",
        )  # fmt: skip
        return y_RN, own_R1


class FeedInt8:
    """Two eight-bit products with ReLU between them; the scale of a row passes through the ReLU."""

    def __init__(self, wide_FM: Tensor, narrow_MF: Tensor) -> None:
        """Quantise the weights."""
        self.wide, self.narrow = RowInt8(wide_FM, relu=True), RowInt8(narrow_MF, positive=True)

    def __call__(self, x_RK: Tensor, scale_R1: Tensor | None = None) -> Tensor:
        """Return the products (R, N) in full precision."""
        hidden_RF, own_R1 = self.wide.product(x_RK)
        return self.narrow(hidden_RF, own_R1 if scale_R1 is None else own_R1 * scale_R1)
