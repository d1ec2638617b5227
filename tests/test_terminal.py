"""Progress for people: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import re
import sys

import pytest

from siglum.log import Tick
from siglum.terminal import ConsoleProgress


class Terminal:
    """A stderr that says it is a terminal."""

    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


def test_progress_on_a_terminal_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar of rich's that is drawn in place, holds what it is told last, and is gone when all is done."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    for name, value in {"TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "100"}.items():
        monkeypatch.setenv(name, value)
    progress = ConsoleProgress()
    progress(Tick("work", 1, 10, 1.0, "step"))
    assert terminal.text == ""
    progress.last -= 1
    progress(Tick("work [1]", 5, 10, 10.0, "step"))
    shown = terminal.text
    assert re.search(r"work \[1\] ━+╸?\s* +50% 0\.5 step/s  0:10 left", shown) and "\n" not in shown
    progress(Tick("work [1]", 10, 10, 20.0, "step"))
    assert terminal.text.rpartition("\r\x1b[2K")[2].endswith("100% 0.5 step/s")
    progress.last -= 1
    progress(Tick("rows", 7, 0, 2.0, "row"))
    said = terminal.text.rpartition("\r\x1b[2K")[2]
    assert said.startswith("rows") and said.endswith("3.5 row/s") and "100%" not in said
    progress.close()
    progress.close()
    assert terminal.text.endswith("\x1b[2K")


def test_progress_elsewhere_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    progress = ConsoleProgress()
    progress(Tick("work", 1, 0, 1.0, "row"))
    assert capsys.readouterr().err == ""
    progress.last -= 11
    progress(Tick("work", 3, 0, 2.0, "row"))
    assert capsys.readouterr().err == "work  1.5 row/s\n"
    progress.last -= 11
    progress(Tick("work", 0, 9, 0.0, "row"))
    assert "? left" in capsys.readouterr().err
