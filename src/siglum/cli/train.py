"""`siglum train`: train the decoder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from siglum.cli.common import changed_config, say
from siglum.device import check_device


@dataclass(kw_only=True)
class Command:
    """Train the decoder that generates codes from query vectors (3-decoder).

    Examples:
      siglum train runs/mine
      siglum train runs/mine --device cuda --resume
    """

    folder: tyro.conf.Positional[Path]
    """The run folder."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Override a setting of the run, such as --set decoder.epochs=3; may be repeated."""
    seed: int | None = None
    """Another seed than the run's."""
    device: str = "cpu"
    """cpu, cuda or mps."""
    resume: bool = False
    """Continue a killed training; the result has the same bits on CPU."""
    tensorboard: bool = False
    """Write the curves for TensorBoard too."""
    json: bool = False
    """Print one JSON document on stdout."""


def run(command: Command) -> dict[str, Any]:
    """Make stage 3."""
    from siglum.log import read_log
    from siglum.pipeline import RunFolder, make_decoder

    folder = RunFolder(command.folder)
    device, log = check_device(command.device), folder.log(command.tensorboard)
    with changed_config(folder, command.set, command.seed, ("decoder", "search")):
        make_decoder(folder, device=device, resume=command.resume, log=log)
    say(f"decoder written to {folder.decoder}")
    last = [record for record in read_log(folder.root / "log.jsonl") if record["stage"] == "decoder"][-1:]
    return {
        "run": str(command.folder),
        **{k: v for record in last for k, v in record.items() if k not in ("time", "stage")},
    }
