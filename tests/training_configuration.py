"""A training configuration as it lies in the checkpoints of others, made without omegaconf."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest


def training_configuration(monkeypatch: pytest.MonkeyPatch) -> object:
    """Return an object that is pickled under the name of omegaconf's, for as long as the patch lasts."""
    module: Any = types.ModuleType("omegaconf.dictconfig")
    module.DictConfig = type("DictConfig", (), {"__module__": "omegaconf.dictconfig", "__qualname__": "DictConfig"})
    monkeypatch.setitem(sys.modules, "omegaconf", types.ModuleType("omegaconf"))
    monkeypatch.setitem(sys.modules, "omegaconf.dictconfig", module)
    found = module.DictConfig()
    found.content = {"seed": 1, "lists": [1, "two"]}
    return found
