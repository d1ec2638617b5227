"""The house rules hold: short files and functions, one meaning a class name, one place for engines and folders."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILES = [
    path for folder in ("src", "tests", "benchmarks", "examples") for path in sorted((ROOT / folder).rglob("*.py"))
]
TREES = {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in FILES}
SOURCE = {name: tree for name, tree in TREES.items() if name.startswith("src")}
LINES, FUNCTION_LINES = 400, 50
STAGE_FOLDER = re.compile(r"\b[1-6]-(vectors|tokenizer|decoder|index|runs|report)\b")
TYPE_NAME = re.compile(r"[A-Z][a-z]\w*")
ENGINES = ("FastSearch", "GraphSearch")


def nodes(tree: ast.AST, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
    return (node for node in ast.walk(tree) if isinstance(node, kinds))


def test_no_file_is_long() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in FILES}
    assert len(lengths) > 300
    assert {name: length for name, length in lengths.items() if length > LINES} == {}


def test_no_function_is_long() -> None:
    lengths = {
        f"{name}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for name, tree in TREES.items()
        for node in nodes(tree, ast.FunctionDef, ast.AsyncFunctionDef)
    }
    assert len(lengths) > 3000
    assert {name: length for name, length in lengths.items() if length > FUNCTION_LINES} == {}


def test_a_class_name_has_one_meaning() -> None:
    """Private classes and every verb's `Command` aside; a type alias has no class's name either."""
    places, aliases = defaultdict(list), defaultdict(list)
    for name, tree in SOURCE.items():
        for node in nodes(tree, ast.ClassDef):
            if not node.name.startswith("_") and node.name != "Command":
                places[node.name].append(name)
        for node in (one for one in tree.body if isinstance(one, ast.Assign)):
            for target in (one.id for one in node.targets if isinstance(one, ast.Name)):
                if TYPE_NAME.fullmatch(target):
                    aliases[target].append(name)
    assert len(places) > 250 and len(aliases) > 20
    assert {name: found for name, found in places.items() if len(found + aliases[name]) > 1} == {}


def test_stage_folders_are_named_in_one_place() -> None:
    """Docstrings, which are help for people, aside."""
    told = defaultdict(list)
    for name, tree in SOURCE.items():
        docs = {id(node.value) for node in nodes(tree, ast.Expr)}
        for node in nodes(tree, ast.Constant):
            if isinstance(node.value, str) and id(node) not in docs and STAGE_FOLDER.search(node.value):
                told[name].append(node.value)
    assert list(told) == ["src/siglum/run/folder.py"]


def test_one_place_chooses_the_engine() -> None:
    makers = {
        name
        for name, tree in SOURCE.items()
        for node in nodes(tree, ast.Call)
        if isinstance(node.func, ast.Name) and node.func.id in ENGINES
    }
    assert makers == {"src/siglum/search/engine.py"}
