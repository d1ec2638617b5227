"""A setting at scale tiny on a small random collection: every training takes a second."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from conftest import build_vectors
from siglum.experiment.setting import Setting
from siglum.types import Vectors


@cache
def _vectors() -> Vectors:
    return build_vectors(noise=0.5)


class SmallSetting(Setting):
    """300 items of three kinds, 50 test queries."""

    def vectors(self) -> Vectors:
        return _vectors()


def small_setting(out: Path, **more: object) -> Setting:
    """Return such a setting."""
    return SmallSetting("world", out, scale="tiny", **more)
