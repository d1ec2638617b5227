"""What people give, checked where it enters: names of folders, texts, ids and arrays."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from siglum.types import Item, Query, SiglumError, shown


def listed(ids: Iterable[str]) -> list[str]:
    """Return ids as a list of strings, refusing a lone string, whose letters would be taken for ids."""
    if isinstance(ids, str):
        raise SiglumError(f"ids must be a collection of strings, but one string was given: {shown(ids)}.")
    try:
        names = list(ids)
    except TypeError:
        raise SiglumError(f"ids must be a collection of strings, not {shown(ids)}.") from None
    for place, name in enumerate(names):
        if not isinstance(name, str):
            raise SiglumError(f"ids must be strings, but the one at position {place} is {shown(name)}.")
    return names


def encodable(text: str) -> bool:
    """Return whether a text can be written: JSON may escape half of a surrogate pair, which no file could hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_id(name: str, what: str) -> None:
    """Refuse an id that would not be one column of a text file; ids of folders write white space as in a URL.

    >>> check_id("cat-17", "the id")
    """
    if name.split() != [name]:
        raise SiglumError(f"{what} is empty or holds whitespace; rename it.")


def as_array(what: str, value: object) -> np.ndarray:
    """Return what somebody gave for an array as one."""
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # lists of unequal lengths, tensors that take gradients
        raise SiglumError(f"{what} must be an array, not {shown(value)} ({error}).") from error


def check_tensor(what: str, value: object, axes: str, *, whole: bool = False) -> None:
    """Refuse what is no tensor with these axes, such as "QD", of whole numbers or of others; no value is looked at."""
    import torch

    kind = "whole numbers" if whole else "numbers"
    wanted = f"{what} must be a tensor ({', '.join(axes)}) of {kind}"
    if not isinstance(value, torch.Tensor):
        raise SiglumError(f"{wanted}, not {shown(value)}.")
    fits = value.dtype in (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)
    if value.ndim != len(axes) or (fits if whole else value.is_floating_point()) is False:
        raise SiglumError(f"{wanted}, not {tuple(value.shape)} of {value.dtype}.")


def check_codebooks(value: Any) -> None:
    """Refuse what are no codebooks, one tensor (V, D) a level in anything that has a length and an order."""
    import torch

    ordered = hasattr(value, "__len__") and hasattr(value, "__getitem__")
    if not ordered or isinstance(value, str | bytes | Mapping | torch.Tensor):
        raise SiglumError(f"codebooks are a list of tensors (V, D), one a level, not {shown(value)}.")
    for level, book in enumerate(value):
        check_tensor(f"the codebook of level {level}", book, "VD")


def as_folder(value: object) -> Path:
    """Return the path of a folder that somebody named; it need not be there.

    >>> as_folder("runs/demo").name
    'demo'
    """
    return _as_path("folder", value)


def as_file(value: object) -> Path:
    """Return the path of a file that somebody named; it need not be there."""
    return _as_path("file", value)


def _as_path(kind: str, value: object) -> Path:
    name = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(name, str) or not name:
        raise SiglumError(f"a {kind} is named by a string or a path, not {shown(value)}.")
    return check_path(Path(name))


def check_path(path: Path) -> Path:
    """Return a path if the operating system can look for it, whatever it finds there."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass
    except (OSError, ValueError) as error:  # a link to itself, a name too long, with a null byte, or of half characters
        why = error.strerror if isinstance(error, OSError) else "it holds characters that names cannot have"
        raise SiglumError(f"{shown(str(path))} cannot be the name of a file or folder: {why}.") from error
    return path


def check_row(row: Item | Query, what: str) -> None:
    """Refuse an item or query whose id and words are not text that can be written; pictures are checked on loading."""
    words = {"id": row.id, "text": row.text, "instruction": row.instruction if isinstance(row, Query) else None}
    for name, value in words.items():
        if value is None and name != "id":
            continue
        if not isinstance(value, str):
            raise SiglumError(f"the {name} of {what} is a string, not {shown(value)}.")
        if not encodable(value):
            raise SiglumError(f"the {name} of {what} holds half of a surrogate pair, which UTF-8 cannot write.")


def read_text(path: Path) -> str:
    """Read a text, or say in one sentence why that was not possible."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise SiglumError(f"{path} is not UTF-8 text; save it as UTF-8.") from error
    except FileNotFoundError as error:
        raise SiglumError(f"{path} does not exist.") from error
    except OSError as error:
        raise SiglumError(f"{path} cannot be read: {error.strerror or error}.") from error
