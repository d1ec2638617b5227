"""Fusion modules: combiner (GENIUS), towers, gated sum, plain sum, none. All return unit vectors.

Shapes: N rows, Di image features, Dt text features, D fused size.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from siglum.config import FusionConfig
from siglum.device import trains_in_bf16
from siglum.types import SiglumError, one_of


class Fusion(nn.Module):
    """Base: scales the features, zeroes what is missing, lets a subclass mix, and normalises."""

    config: FusionConfig
    image_shift: Tensor
    image_scale: Tensor
    text_shift: Tensor
    text_scale: Tensor

    def __init__(self, image_dim: int, text_dim: int) -> None:
        super().__init__()
        for part, dim in (("image", image_dim), ("text", text_dim)):
            self.register_buffer(f"{part}_shift", torch.zeros(dim))
            self.register_buffer(f"{part}_scale", torch.ones(dim))

    @torch.no_grad()
    def standardise(self, image_ND: Tensor, text_ND: Tensor, has_image_N: Tensor, has_text_N: Tensor) -> None:
        """Set shift and scale so that present features have mean 0 and standard deviation 1/sqrt(dim)."""
        for part, rows, mask in (("image", image_ND, has_image_N), ("text", text_ND, has_text_N)):
            present = rows[mask].float()
            if len(present) > 1:
                deviation = present.std(0)
                floor = deviation.max().clamp(min=1e-12) * 1e-3
                getattr(self, f"{part}_shift").copy_(present.mean(0))
                getattr(self, f"{part}_scale").copy_(1 / (deviation.clamp(min=floor) * rows.shape[1] ** 0.5))

    def forward(self, image_ND: Tensor, text_ND: Tensor, has_image_N: Tensor, has_text_N: Tensor) -> Tensor:
        """Return unit vectors (N, D); the module's own arithmetic may be bf16 while it learns."""
        mask_i, mask_t = has_image_N[:, None].float(), has_text_N[:, None].float()
        image = ((image_ND.float() - self.image_shift) * self.image_scale).masked_fill(mask_i == 0, 0.0)
        text = ((text_ND.float() - self.text_shift) * self.text_scale).masked_fill(mask_t == 0, 0.0)
        use_bf16 = self.training and trains_in_bf16("fusion.precision", self.config.precision, image.device)
        with torch.autocast(image.device.type, torch.bfloat16, enabled=use_bf16):
            mixed = self.mix(image, text, mask_i, mask_t)
        return F.normalize(mixed.float(), dim=-1)

    def mix(self, image: Tensor, text: Tensor, mask_i: Tensor, mask_t: Tensor) -> Tensor:
        """Combine masked features into one vector a row."""
        raise NotImplementedError


def _skip(dim: int, out: int) -> nn.Module:
    return nn.Identity() if dim == out else nn.Linear(dim, out, bias=False)


class Combiner(Fusion):
    """CLIP4CIR-style combiner as GENIUS uses it: an MLP over both projections plus a gated sum of the features."""

    def __init__(self, config: FusionConfig, image_dim: int, text_dim: int) -> None:
        super().__init__(image_dim, text_dim)
        self.image_in = nn.Linear(image_dim, config.projection)
        self.text_in = nn.Linear(text_dim, config.projection)
        wide = 2 * config.projection
        self.mlp = nn.Sequential(
            nn.Linear(wide, config.hidden), nn.ReLU(), nn.Dropout(config.dropout), nn.Linear(config.hidden, config.dim)
        )
        self.gate = nn.Sequential(
            nn.Linear(wide, config.hidden), nn.ReLU(), nn.Dropout(config.dropout), nn.Linear(config.hidden, 1)
        )
        self.image_skip = _skip(image_dim, config.dim)
        self.text_skip = _skip(text_dim, config.dim)
        self.drop = nn.Dropout(config.dropout)

    def mix(self, image: Tensor, text: Tensor, mask_i: Tensor, mask_t: Tensor) -> Tensor:
        """MLP(concat) + gate * text + (1 - gate) * image."""
        both = torch.cat([self.drop(F.relu(self.text_in(text))), self.drop(F.relu(self.image_in(image)))], -1)
        gate = torch.sigmoid(self.gate(both))
        mixed: Tensor = self.mlp(both) + gate * self.text_skip(text) + (1 - gate) * self.image_skip(image)
        return mixed


class Towers(Fusion):
    """One tower a modality, a linear map plus one hidden layer; the towers' outputs are added.

    Each tower learns only from its own modality, which suits features that have nothing in common.
    """

    def __init__(self, config: FusionConfig, image_dim: int, text_dim: int) -> None:
        super().__init__(image_dim, text_dim)
        self.image_line, self.image_bend = self._tower(config, image_dim)
        self.text_line, self.text_bend = self._tower(config, text_dim)
        self.drop = nn.Dropout(config.input_dropout)

    @staticmethod
    def _tower(config: FusionConfig, dim: int) -> tuple[nn.Module, nn.Module]:
        hidden = [nn.Linear(dim, config.hidden), nn.ReLU(), nn.Dropout(config.dropout)]
        return nn.Linear(dim, config.dim, bias=False), nn.Sequential(*hidden, nn.Linear(config.hidden, config.dim))

    def mix(self, image: Tensor, text: Tensor, mask_i: Tensor, mask_t: Tensor) -> Tensor:
        """Sum of the towers of the parts that are there."""
        image, text = self.drop(image), self.drop(text)
        seen, read = self.image_line(image) + self.image_bend(image), self.text_line(text) + self.text_bend(text)
        mixed: Tensor = mask_i * seen + mask_t * read
        return mixed


class Sum(Fusion):
    """Image plus text, as UniIR's score fusion; without parameters when all sizes agree."""

    def __init__(self, config: FusionConfig, image_dim: int, text_dim: int) -> None:
        super().__init__(image_dim, text_dim)
        self.image_skip = _skip(image_dim, config.dim)
        self.text_skip = _skip(text_dim, config.dim)

    def mix(self, image: Tensor, text: Tensor, mask_i: Tensor, mask_t: Tensor) -> Tensor:
        """Image + text."""
        mixed: Tensor = self.image_skip(image) + self.text_skip(text)
        return mixed


class GatedSum(Sum):
    """A learned gate between the two parts; a single part passes through whole."""

    def __init__(self, config: FusionConfig, image_dim: int, text_dim: int) -> None:
        super().__init__(config, image_dim, text_dim)
        self.gate = nn.Linear(image_dim + text_dim, 1)

    def mix(self, image: Tensor, text: Tensor, mask_i: Tensor, mask_t: Tensor) -> Tensor:
        """Gate * text + (1 - gate) * image, with the gate forced where one part is missing."""
        gate = torch.sigmoid(self.gate(torch.cat([image, text], -1)))
        gate = gate * mask_i * mask_t + mask_t * (1 - mask_i)
        mixed: Tensor = gate * self.text_skip(text) + (1 - gate) * self.image_skip(image)
        return mixed


class NoFusion(Fusion):
    """The single feature of a row, as it is; rows with both parts are refused."""

    def __init__(self, config: FusionConfig, image_dim: int, text_dim: int) -> None:
        super().__init__(image_dim, text_dim)
        for name, dim in (("image", image_dim), ("text", text_dim)):
            if dim not in (0, config.dim):
                raise SiglumError(
                    f"fusion none keeps features as they are, so {name} features need {config.dim} numbers, not {dim}."
                )
        self.dim = config.dim

    def mix(self, image: Tensor, text: Tensor, mask_i: Tensor, mask_t: Tensor) -> Tensor:
        """Whichever part is there."""
        if bool((mask_i * mask_t).any()):
            raise SiglumError(
                "fusion none cannot mix rows that have an image and a text; use combiner, towers, gated or sum."
            )
        parts = [part for part in (image, text) if part.shape[1]]
        return torch.stack(parts).sum(0)


class Joined(Fusion):
    """Several spaces trained apart, side by side, turned to the axes that hold most of them and cut.

    The inner product of vectors side by side is the sum of those in each space; few axes hold nearly all of it.
    """

    axes: Tensor

    def __init__(self, config: FusionConfig, image_dim: int, text_dim: int) -> None:
        super().__init__(image_dim, text_dim)
        self.members = nn.ModuleList(
            build_fusion(member_config(config), image_dim, text_dim) for _ in range(config.members)
        )
        wide = config.members * member_config(config).dim
        self.register_buffer("axes", torch.eye(wide)[:, : config.dim].clone())

    def side_by_side(self, *features: Tensor) -> Tensor:
        """Return the members' unit vectors in one row."""
        return torch.cat([member(*features) for member in self.members], -1)

    def forward(self, image_ND: Tensor, text_ND: Tensor, has_image_N: Tensor, has_text_N: Tensor) -> Tensor:
        """Return unit vectors (N, D) along the axes."""
        return F.normalize(self.side_by_side(image_ND, text_ND, has_image_N, has_text_N) @ self.axes, dim=-1)


def member_config(config: FusionConfig) -> FusionConfig:
    """Return what each of several spaces is trained by."""
    return replace(config, members=1, dim=2 * config.dim)


def build_fusion(config: FusionConfig, image_dim: int, text_dim: int) -> Fusion:
    """Return the fusion module named by the config."""
    if config.members < 1:
        raise SiglumError(f"fusion.members is {config.members}, but must be at least 1.")
    kinds = {"combiner": Combiner, "towers": Towers, "gated": GatedSum, "sum": Sum, "none": NoFusion}
    kind = kinds[one_of("fusion.kind", config.kind, kinds)]
    with warnings.catch_warnings():
        # A collection without pictures (or texts) has features of size 0, which torch finds worth a warning.
        warnings.filterwarnings("ignore", "Initializing zero-element tensors")
        fusion = (kind if config.members == 1 else Joined)(config, image_dim, text_dim)
    fusion.config = config
    return fusion


def plain_sum(image_dim: int, text_dim: int) -> Fusion | None:
    """Return the sum of the features as they are (a joint encoder's own space), or None where they differ in size."""
    sizes = {image_dim, text_dim} - {0}
    return build_fusion(FusionConfig(kind="sum", dim=sizes.pop()), image_dim, text_dim) if len(sizes) == 1 else None
