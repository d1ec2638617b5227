"""`siglum tokenize`: train the fusion module and the quantiser."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from siglum.cli.common import changed_config, say
from siglum.device import check_device


@dataclass(kw_only=True)
class Command:
    """Train the fusion module and the residual quantiser of a run (2-tokenizer).

    Examples:
      siglum tokenize runs/mine
      siglum tokenize runs/mine --resume --set tokenizer.rank_weight=10
    """

    folder: tyro.conf.Positional[Path]
    """The run folder."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Override a setting of the run, such as --set tokenizer.epochs=3; may be repeated."""
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
    """Make stage 2."""
    from siglum.pipeline import RunFolder, make_tokenizer

    folder = RunFolder(command.folder)
    device, log = check_device(command.device), folder.log(command.tensorboard)
    with changed_config(folder, command.set, command.seed, ("fusion", "tokenizer", "decoder", "search")):
        tokenizer = make_tokenizer(folder, device=device, resume=command.resume, log=log)
    last = tokenizer.history[-1] if tokenizer.history else {}
    say(f"tokenizer with codes {' '.join(map(str, tokenizer.quantizer.sizes))} written to {folder.tokenizer}")
    return {
        "run": str(command.folder),
        "sizes": list(tokenizer.quantizer.sizes),
        "fingerprint": tokenizer.fingerprint(),
        **last,
    }
