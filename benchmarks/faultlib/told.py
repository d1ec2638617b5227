"""What a command or a call told: answer, one sentence, or something no user should see."""

from __future__ import annotations

import contextlib
import io
import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Fault = dict[str, str]
LONGEST = 1500
"""A sentence longer than this, what it repeats of a long input not counted, is no sentence."""
KINDS = ("traceback", "silent", "loss", "phantom", "hang", "crash", "stuck", "sentence", "harness")
"""traceback: an error that is no SiglumError; silent: another answer, or a wrong input taken, without an error;
loss: an acknowledged write is gone; phantom: something that was never written is there; hang, crash: no end, or a bad
one; stuck: what is told to do does not work; sentence: an error that is not told in one sentence; harness: the campaign
itself failed."""


@dataclass
class Told:
    """How a command ended."""

    code: int
    out: str = ""
    err: str = ""
    trace: str = ""

    @property
    def sentence(self) -> str:
        """The last line of what it told people."""
        lines = self.err.strip().splitlines()
        return lines[-1] if lines else ""


def fault(kind: str, what: str, trace: str = "") -> Fault:
    """Return a fault as plain values."""
    return {"kind": kind, "what": what[:600], **({"trace": trace[-3000:]} if trace else {})}


def tell(argv: list[Any]) -> Told:
    """Run a command in this process."""
    from siglum.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(arg) for arg in argv])
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 2
        except BaseException:
            return Told(70, out.getvalue(), err.getvalue(), traceback.format_exc())
    return Told(code, out.getvalue(), err.getvalue())


def where(trace: str) -> str:
    """Return a traceback's last place in the library and its last line, which together name a fault.

    >>> where('  File "/x/src/siglum/files.py", line 3, in read\\n    boom\\nKeyError: 1\\n')
    'KeyError: 1 in files.py, read'
    """
    places = re.findall(r'File "[^"]*/siglum/([^"]+)", line \d+, in (\S+)', trace)
    last = (trace.strip().splitlines() or ["?"])[-1]
    last = re.sub(r"/\S*/(t\d+|base-\S+?)/", "…/", last)
    return f"{last[:160]} in {', '.join(places[-1])}" if places else last[:200]


def faults_of(told: Told, what: str) -> list[Fault]:
    """Return what is wrong with how a command ended, whatever its answer is."""
    if told.trace:
        return [fault("traceback", f"{what}: {where(told.trace)}", told.trace)]
    if "Traceback (most recent call last)" in told.err:
        return [fault("traceback", f"{what}: {where(told.err)}", told.err)]
    if told.code not in (0, 1, 2):
        return [fault("crash", f"{what}: exit code {told.code}", told.err)]
    if told.code == 1:
        line = told.sentence
        if not line.startswith("siglum ") or ": " not in line or _length(line) > LONGEST:
            return [fault("sentence", f"{what}: {line[:200]!r} is not one sentence about it", told.err)]
        if "[Errno" in line:
            return [fault("sentence", f"{what}: {shorten(line)}", told.err)]
    return []


def _length(line: str) -> int:
    return len(re.sub(r"(.)\1{20,}", r"\1", line))


def shorten(line: str) -> str:
    """Take paths and numbers out of a sentence, so that alike ones are equal."""
    line = re.sub(r"(/[^\s'\"]*)+", "PATH", line)
    return re.sub(r"\d+", "N", line)[:200]


def attempt(call: Callable[[], Any], what: str) -> tuple[Any, str, list[Fault]]:
    """Call something of the Python API: its value, or the sentence of its SiglumError, and what is wrong with it."""
    from siglum import SiglumError

    try:
        return call(), "", []
    except SiglumError as error:
        text = str(error)
        bad = not text.strip() or "\n" in text or _length(text) > LONGEST
        return None, text or "?", [fault("sentence", f"{what}: {text[:200]!r} is not one sentence")] if bad else []
    except (Exception, SystemExit):
        text = traceback.format_exc()
        return None, "?", [fault("traceback", f"{what}: {where(text)}", text)]


def copy(source: Path, target: Path) -> Path:
    """Copy a folder for real: what is damaged in one must not show in the other."""
    import shutil

    shutil.copytree(source, target, symlinks=True)
    return target
