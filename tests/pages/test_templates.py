"""Templates are whole, fetch nothing, and are the only place where markup is written."""

from __future__ import annotations

import ast
import re
from importlib.resources import files
from pathlib import Path

import pytest
from jinja2 import UndefinedError

import siglum
from siglum.pages.render import environment

TEMPLATES = environment().list_templates()
MARKUP_MAKERS = {"render.py"}
"""Filters that make words bold, code, or breakable."""


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_can_be_read_and_name_no_host(name: str) -> None:
    environment().get_template(name)
    text = (files("siglum.pages") / "templates" / name).read_text()
    assert not re.search(r"https?:|@import|url\(|<script|\|\s*safe", text)


def test_a_name_that_is_not_there_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        environment().from_string("{{ nobody }}").render()
    assert environment().from_string("{{ words }}").render(words="<b>") == "&lt;b&gt;"


def test_no_markup_is_written_in_python() -> None:
    pages = Path(siglum.__file__).parent / "pages"
    found = {
        f"{path.name}:{node.lineno}"
        for path in pages.glob("*.py")
        if path.name not in MARKUP_MAKERS
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"</?[a-z]+[ />]", node.value)
        if ">>> " not in node.value
    }
    assert found == set()
