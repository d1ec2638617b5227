"""What all verbs share: parsing, errors, progress, overrides and output."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import tyro

from siglum.config import RunConfig, as_dict, from_dict
from siglum.log import Tick, reporting
from siglum.types import SiglumError

if TYPE_CHECKING:
    from siglum.pipeline import RunFolder

C = TypeVar("C")


def call(command: type[C], run: Callable[[C], dict[str, Any]], verb: str, args: list[str]) -> int:
    """Parse the arguments, run the verb with progress on stderr, and print its result (JSON if asked)."""
    try:
        parsed = tyro.cli(command, args=args, prog=f"siglum {verb}", description=command.__doc__)
    except SystemExit as stop:
        return int(stop.code or 0) if isinstance(stop.code, int) or stop.code is None else 2
    reporter = ConsoleProgress()
    try:
        with reporting(reporter):
            result = run(parsed)
    except (SiglumError, OSError) as error:
        reporter.close()
        sys.stderr.write(f"siglum {verb}: {error}\n")
        return 1
    except KeyboardInterrupt:
        reporter.close()
        more = "; --resume goes on where it stopped" if hasattr(parsed, "resume") else ""
        sys.stderr.write(f"siglum {verb}: interrupted{more}.\n")
        return 130
    reporter.close()
    if getattr(parsed, "json", False):
        sys.stdout.write(json.dumps(result, indent=1, sort_keys=True) + "\n")
    return 0


def say(text: str = "") -> None:
    """Tell people something on stderr; stdout is for results."""
    clear = "\r\x1b[2K" if sys.stderr.isatty() else ""  # a progress line may be open
    sys.stderr.write(f"{clear}{text}\n")


def write_document(out: Path, document: dict[str, Any], table: str) -> None:
    """Write a benchmark's document, its table beside it (.md), and show the table."""
    from siglum.files import write_json, write_text

    write_json(out, document)
    write_text(out.with_suffix(".md"), table)
    say(table)
    say(f"written to {out} and {out.with_suffix('.md')}")


class ConsoleProgress:
    """One line on a terminal, rewritten in place; elsewhere a line every ten seconds."""

    def __init__(self, terminal: bool | None = None) -> None:
        self.terminal = sys.stderr.isatty() if terminal is None else terminal
        self.last = time.perf_counter()
        self.open = False

    def __call__(self, tick: Tick) -> None:
        """Show how far the work is, its rate and the time left."""
        now, done = time.perf_counter(), tick.done >= tick.total > 0
        pause = 0.2 if self.terminal else 10.0
        if now - self.last < pause and not (done and self.open):
            return
        self.last = now
        share = f"{100 * tick.done / tick.total:3.0f} %  " if tick.total else ""
        left = f"  {_clock(tick.left)} left" if tick.total and not done else ""
        line = f"{tick.label}  {share}{tick.rate:,.1f} {tick.unit}/s{left}"
        if self.terminal:
            sys.stderr.write(f"\r\x1b[2K{line}")
            sys.stderr.flush()
            self.open = True
        else:
            say(line)

    def close(self) -> None:
        """Clear the line."""
        if self.open:
            sys.stderr.write("\r\x1b[2K")
            self.open = False


def _clock(seconds: float) -> str:
    if seconds == float("inf"):
        return "?"
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def override(config: RunConfig, settings: tuple[str, ...]) -> RunConfig:
    """Apply settings such as `tokenizer.epochs=3`; an unknown field is refused by name.

    >>> override(RunConfig(), ("decoder.epochs=3",)).decoder.epochs
    3
    """
    values = as_dict(config)
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise SiglumError(f"a setting is written field=value, such as tokenizer.epochs=3; got {setting!r}.")
        place, parts = values, name.split(".")
        for part in parts[:-1]:
            if not isinstance(place.get(part), dict):
                stages = ", ".join(key for key, value in values.items() if isinstance(value, dict))
                raise SiglumError(f"there is no setting {name!r}; the stages are {stages}.")
            place = place[part]
        try:
            place[parts[-1]] = json.loads(text)
        except json.JSONDecodeError:
            place[parts[-1]] = text
    changed: RunConfig = from_dict(RunConfig, values)
    return changed


@contextmanager
def changed_config(
    run: RunFolder, settings: tuple[str, ...], seed: int | None, stages: tuple[str, ...]
) -> Iterator[None]:
    """Write the run's config with some settings changed; if the work is refused, put the old one back.

    Only settings of `stages` may change: an earlier stage is made already, with the values it has.
    """
    before = run.config()
    for setting in settings:
        if setting.split(".")[0] not in stages:
            raise SiglumError(f"{setting!r} cannot be set here; this verb takes settings of {', '.join(stages)}.")
    after = override(before, settings)
    run.write_config(after if seed is None else replace(after, seed=seed))
    try:
        yield
    except Exception:  # a kill or an interrupt may be resumed, with the new settings
        run.write_config(before)
        raise


def check_words(folder: Path, text: str | None, source: dict[str, Any]) -> None:
    """Refuse words in a run that could only answer them with noise."""
    if text and not source.get("supervised", True) and not source.get("joint", True):
        raise SiglumError(
            f"{folder} was built without captions by an encoder that does not put words and pictures into one"
            " space, so words cannot find anything; give --image FILE alone, or build with captions or a CLIP encoder."
        )
