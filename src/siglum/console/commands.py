"""What all verbs share: parsing, errors, progress, overrides and output."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from inspect import getdoc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import tyro

from siglum.config import RunConfig, as_dict, from_dict
from siglum.given import check_path
from siglum.terminal import shown_if
from siglum.types import SiglumError, shown

if TYPE_CHECKING:
    from siglum.run.folder import RunFolder

C = TypeVar("C")


@dataclass(kw_only=True)
class Verb:
    """What every verb takes."""

    json: bool = False
    """Print one JSON document on stdout."""

    def values(self, *names: str) -> dict[str, Any]:
        """Return some options by name, as what they are handed to takes them."""
        return {name: getattr(self, name) for name in names}


@dataclass(kw_only=True)
class DeviceVerb(Verb):
    """A verb that computes."""

    device: str = "cpu"
    """cpu, cuda or mps."""


@dataclass(kw_only=True)
class WritingVerb(DeviceVerb):
    """A verb that writes a run: `call` holds the run's lock for as long as it works."""

    LOCKS: ClassVar[str] = "folder"
    """The option that names the run folder."""
    wait: float | None = None
    """Seconds to wait while another process writes the run, then refuse; 0 refuses at once, unset waits on."""


@dataclass(kw_only=True)
class OneRun:
    """What a verb about one run takes first."""

    folder: tyro.conf.Positional[Path]
    """The run folder."""


@dataclass(kw_only=True)
class TrainingVerb(OneRun, WritingVerb):
    """A verb that trains a stage of a run."""

    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Override a setting of the run, such as --set decoder.epochs=3; may be repeated."""
    seed: int | None = None
    """Another seed than the run's."""
    resume: bool = False
    """Continue a killed training; the result has the same bits on CPU."""
    tensorboard: bool = False
    """Write the curves for TensorBoard too."""


def call(command: type[C], run: Callable[[C], dict[str, Any]], verb: str, args: list[str]) -> int:
    """Parse the arguments, run the verb with progress on stderr, and print its result (JSON if asked)."""
    try:
        parsed = tyro.cli(command, args=args, prog=f"siglum {verb}", description=getdoc(command))
    except SystemExit as stop:
        return int(stop.code or 0) if isinstance(stop.code, int) or stop.code is None else 2
    except SiglumError as error:  # what the environment says, where a verb asks it
        sys.stderr.write(f"siglum {verb}: {_in_words(error)}\n")
        return 1
    try:
        _check_paths(parsed)
        with shown_if(True), _writing(parsed, verb):
            result = run(parsed)
    except BrokenPipeError:
        raise
    except (SiglumError, OSError) as error:
        sys.stderr.write(f"siglum {verb}: {_in_words(error)}\n")
        return 1
    except KeyboardInterrupt:
        more = "; --resume goes on where it stopped" if hasattr(parsed, "resume") else ""
        sys.stderr.write(f"siglum {verb}: interrupted{more}.\n")
        return 130
    if getattr(parsed, "json", False):
        sys.stdout.write(json.dumps(result, indent=1, sort_keys=True) + "\n")
    return 0


def _check_paths(command: object) -> None:
    """Refuse names of files that no file can have, before anything is done."""
    for value in vars(command).values():
        for path in value if isinstance(value, tuple) else (value,):
            if isinstance(path, Path):
                check_path(path)


def _in_words(error: Exception) -> str:
    """Return what an error says as one line; one of the operating system, with the file it is about."""
    if isinstance(error, OSError) and error.strerror:
        about = f"{shown(str(error.filename), 300)}: " if error.filename is not None else ""
        return f"{about}{error.strerror}."
    return " ".join(str(error).splitlines())


def _writing(command: object, verb: str) -> AbstractContextManager[None]:
    """Return the lock of the run that a command writes; parts of one encoding share it."""
    if not isinstance(command, WritingVerb):
        return nullcontext()
    from siglum.run.lock import lock_run

    shared = bool(getattr(command, "shard", ""))
    return lock_run(getattr(command, command.LOCKS), f"siglum {verb}", command.wait, say, shared=shared)


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


def override(config: RunConfig, settings: tuple[str, ...]) -> RunConfig:
    """Apply settings such as `tokenizer.epochs=3`; an unknown field is refused by name.

    >>> override(RunConfig(), ("decoder.epochs=3",)).decoder.epochs
    3
    """
    values = as_dict(config)
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise SiglumError(f"a setting is written field=value, such as tokenizer.epochs=3; got {shown(setting)}.")
        place, parts = values, name.split(".")
        for part in parts[:-1]:
            if not isinstance(place.get(part), dict):
                stages = ", ".join(key for key, value in values.items() if isinstance(value, dict))
                raise SiglumError(f"there is no setting {shown(name)}; the stages are {stages}.")
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
            raise SiglumError(f"{shown(setting)} cannot be set here; this verb takes settings of {', '.join(stages)}.")
    after = override(before, settings)
    run.write_config(after if seed is None else replace(after, seed=seed))
    try:
        yield
    except Exception:  # a kill or an interrupt may be resumed, with the new settings
        run.write_config(before)
        raise
