"""Pretrained weights: model folders, found here or fetched from the Hugging Face hub, and torch checkpoints."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from siglum.encode.base import missing_package, quiet_loading
from siglum.types import SiglumError

TEXTS = ("*.json", "*.txt", "*.model")
"""Files of configurations and tokenizers."""
SAFE, OLD = "model*.safetensors", "pytorch_model*.bin"
"""Files of weights as transformers names them; a repository may hold others, for other libraries."""
VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model")
"""Files of which a tokenizer needs one; without any, transformers makes up an empty tokenizer."""
HARMLESS = (
    "omegaconf.dictconfig.DictConfig",
    "omegaconf.listconfig.ListConfig",
    "omegaconf.base.ContainerMetadata",
    "omegaconf.base.Metadata",
    "omegaconf.nodes.AnyNode",
    "typing.Any",
    "builtins.dict",
    "builtins.list",
    "builtins.int",
    "collections.defaultdict",
)
"""Classes by which a training configuration, saved beside the weights, names itself."""


class Ignored(dict[Any, Any]):
    """Takes the place of every object in a checkpoint that is not weights, whatever it is made from."""

    def __init__(self, *_: Any) -> None:
        super().__init__()

    def __setstate__(self, _: Any) -> None:
        """Forget the state."""

    def append(self, _: Any) -> None:
        """Forget an entry."""

    def extend(self, _: Any) -> None:
        """Forget some entries."""


def need(package: str, encoder: str, extra: str) -> ModuleType:
    """Import an optional package, or say how to install it."""
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        raise missing_package(encoder, package, f"pip install 'siglum[{extra}]'") from error
    except (ImportError, RuntimeError) as error:  # torchvision raises the latter if it was built for another torch.
        reason = " ".join(str(error).split()).rstrip(".")
        raise SiglumError(
            f"encoder {encoder} needs the package {package}, which cannot be imported ({reason}); install it again "
            "with all its dependencies."
        ) from error


def model_folder(name: str, encoder: str, *, weights: bool = True) -> Path:
    """Return a local folder as it is, else the folder that the hub's repository of that name is kept in.

    What is kept already is not fetched again, and with `HF_HUB_OFFLINE=1` nothing is.
    """
    if Path(name).is_dir():
        return Path(name)
    hub = need("huggingface_hub", encoder, "transformers")
    try:
        folder = Path(hub.snapshot_download(name, allow_patterns=[*TEXTS, *([SAFE] * weights)]))
        if weights and not weight_files(folder):
            folder = Path(hub.snapshot_download(name, allow_patterns=[*TEXTS, OLD]))
    except Exception as error:  # The hub's client raises errors of many packages: no name, no network, no entry.
        raise SiglumError(
            f"encoder {encoder} needs {name!r}, which is no folder here and could not be fetched from the Hugging Face "
            f"hub ({type(error).__name__}); fetch it where there is a network with `hf download {name}`, which"
            " `pip install huggingface_hub` brings."
        ) from error
    return folder


def weight_files(folder: Path) -> list[Path]:
    """Return the files a model is loaded from: its safetensors, or else its torch files."""
    return sorted(folder.glob(SAFE)) or sorted(folder.glob(OLD))


def load_model(kind: Any, folder: Path, **options: Any) -> Any:
    """Load a transformers model of class `kind` from its folder and refuse one that lacks weights."""
    if not weight_files(folder):
        raise SiglumError(f"{folder} holds no weights ({SAFE} or {OLD}); fetch the whole model again.")
    with quiet_loading():
        try:
            model, report = kind.from_pretrained(folder, local_files_only=True, output_loading_info=True, **options)
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            raise SiglumError(f"{folder} cannot be loaded as a {kind.__name__} ({_first_line(error)}).") from error
    if missing := sorted(report["missing_keys"]):
        raise SiglumError(
            f"{folder} lacks {len(missing)} weights of a {kind.__name__}, the first being {missing[0]!r}; fetch the "
            "whole model again."
        )
    return model.eval()


def load_tokenizer(folder: Path) -> Any:
    """Load the tokenizer that lies in a model's folder."""
    from transformers import AutoTokenizer

    if not _has_tokenizer(folder):
        raise SiglumError(f"{folder} holds no tokenizer ({', '.join(VOCABULARIES)}); fetch the whole model again.")
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SiglumError(
            f"the tokenizer in {folder} cannot be loaded ({_first_line(error)}); fetch the whole model again."
        ) from error


def tokenizer_beside(checkpoint: Path, name: str, encoder: str) -> Any:
    """Load the tokenizer in a checkpoint's folder, if there is one, else that of a model on the hub."""
    here = checkpoint.parent
    return load_tokenizer(here if _has_tokenizer(here) else model_folder(name, encoder, weights=False))


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """Return the weights under `model` in a torch checkpoint, without running anything that is stored in it."""
    from pickle import UnpicklingError

    if not path.is_file():
        raise SiglumError(f"the checkpoint {path} does not exist.")
    try:
        with torch.serialization.safe_globals([(Ignored, name) for name in HARMLESS]):
            found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except UnpicklingError as error:
        reason = str(error).partition("Unsupported global: GLOBAL ")[2].split()
        raise SiglumError(
            f"{path} is not loaded, since it holds more than weights ({reason[0] if reason else 'an unknown object'}); "
            "where you trust it, save {'model': checkpoint['model']} alone with torch.save."
        ) from error
    except (RuntimeError, OSError, EOFError, ValueError) as error:
        raise SiglumError(f"{path} is not a whole torch checkpoint ({_first_line(error)}).") from error
    if not isinstance(found, dict) or not isinstance(found.get("model"), dict):
        raise SiglumError(f"{path} is not a checkpoint of this kind: it has no weights under 'model'.")
    return {key: value for key, value in found["model"].items() if isinstance(value, Tensor)}


def take(state: Mapping[str, Tensor], key: str, path: Path) -> Tensor:
    """Return one tensor of a checkpoint as float32, or say that it is not there."""
    if key not in state:
        raise SiglumError(f"{path} lacks the weights {key!r}; it is not a checkpoint of this kind, or not a whole one.")
    return state[key].float()


def fill(model: nn.Module, find: Callable[[str], Tensor], path: Path) -> None:
    """Put into a model the tensors that `find` gives for its keys, and make it ready for inference."""
    try:
        model.load_state_dict({key: find(key) for key in model.state_dict()})
    except RuntimeError as error:
        raise SiglumError(f"the weights in {path} do not fit together ({_first_line(error)}).") from error
    model.eval()


def count_layers(state: Mapping[str, Tensor], prefix: str) -> int:
    """Return how many layers are numbered right after a prefix.

    >>> count_layers({"blocks.0.norm": torch.zeros(1), "blocks.1.norm": torch.zeros(1)}, "blocks.")
    2
    """
    return len({match[1] for key in state if (match := re.match(rf"{re.escape(prefix)}(\d+)\.", key))})


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).exists() for name in VOCABULARIES)


def _first_line(error: Exception) -> str:
    told = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return " ".join(told.split("\n\n")[0].split()).rstrip(".")[:300] or type(error).__name__
