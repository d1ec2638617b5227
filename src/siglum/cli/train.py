"""`siglum train`: train the decoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from siglum.console.commands import TrainingVerb, changed_config, say
from siglum.device import check_device


@dataclass(kw_only=True)
class Command(TrainingVerb):
    """Train the decoder that generates codes from query vectors, or from histories of items (3-decoder).

    Examples:
      siglum train runs/mine
      siglum train runs/mine --device cuda --resume
    """


def run(command: Command) -> dict[str, Any]:
    """Make stage 3."""
    from siglum.log import read_log
    from siglum.recommend.validation import validation_of
    from siglum.run.folder import LOG_FILE, RunFolder
    from siglum.run.stages import make_decoder

    folder = RunFolder(command.folder)
    device, log = check_device(command.device), folder.log(command.tensorboard)
    with changed_config(folder, command.set, command.seed, ("decoder", "search")):
        validate = validation_of(folder, device)
        make_decoder(folder, device=device, resume=command.resume, log=log, validate=validate)
    say(f"decoder written to {folder.decoder}")
    last = [record for record in read_log(folder.root / LOG_FILE) if record["stage"] == "decoder"][-1:]
    return {
        "run": str(command.folder),
        **{k: v for record in last for k, v in record.items() if k not in ("time", "stage")},
    }
