"""Which sources a number comes from: those that some modules import, and theirs, down to the last.

What cannot change a number is left out, so that a word in a report does not have everything measured again. It needs
no git, and gives the same on every machine that has the same files.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from siglum.files import file_fingerprint, fingerprint

PACKAGE, ROOT = "siglum", Path(__file__).parents[1]
LEFT_OUT = (
    "siglum",
    "siglum.api",
    "siglum.checks",
    "siglum.console",
    "siglum.data",
    "siglum.encode",
    "siglum.files",
    "siglum.lab.captions",
    "siglum.lab.catalogue",
    "siglum.lab.experiments.features",
    "siglum.lab.experiments.setting",
    "siglum.log",
    "siglum.recipes",
    "siglum.rootfiles",
    "siglum.run",
    "siglum.scales",
    "siglum.search.retriever",
    "siglum.tensors",
)
"""Modules, with all below them, that are not followed: they read, write and tell, or choose settings, which count as
settings once they are resolved. Of data their content counts."""
TRAINING = {
    "space": ("siglum.fuse.contrastive", "siglum.fuse.store"),
    "tokenizer": ("siglum.tokenize.train", "siglum.tokenize.store"),
    "decoder": ("siglum.generate.train", "siglum.generate.query", "siglum.generate.store"),
}
"""What makes each stage of a training."""
MEASURING = ("siglum.lab.experiments.trained", "siglum.lab.experiments.fusion_weights", "siglum.run.coded")
"""What trains, searches and chooses weights: the sources of every part of an experiment."""
DRAWING = ("siglum.lab.world.collection", "siglum.encode.builtin")
"""What makes the drawn world and its features."""


@cache
def sources_fingerprint(*modules: str) -> str:
    """Return what changes when the source of any of these modules does, or of one they import."""
    return fingerprint([[name, file_fingerprint(path)] for name, path in sorted(sources(*modules).items())])


def sources(*modules: str) -> dict[str, Path]:
    """Return these modules and all they import from this package, with their files."""
    found: dict[str, Path] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        path = None if name in found else _file_of(name)
        if path is not None:
            found[name] = path
            waiting += [one for one in _imported(path) if not _is_left_out(one)]
    return found


def _is_left_out(name: str) -> bool:
    return name == PACKAGE or any(f"{name}.".startswith(f"{out}.") for out in LEFT_OUT if out != PACKAGE)


def _file_of(name: str) -> Path | None:
    """Return a module's file; None for what is a name inside a module."""
    place = ROOT.joinpath(*name.split(".")[1:])
    return next((path for path in (place / "__init__.py", place.with_suffix(".py")) if path.is_file()), None)


@cache
def _imported(path: Path) -> frozenset[str]:
    """Return what a file imports from this package, wherever in it, but not what it needs for annotations alone."""
    found = set()
    for node in _nodes(ast.parse(path.read_bytes())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            parts = name.split(".")
            if parts[0] == PACKAGE:
                found |= {".".join(parts[: depth + 1]) for depth in range(1, len(parts))}
    return frozenset(found)


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Go through a tree without blocks under `if TYPE_CHECKING`."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING"):
            yield from _nodes(child)
