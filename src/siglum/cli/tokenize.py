"""`siglum tokenize`: train the fusion module and the quantiser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from siglum.console.commands import TrainingVerb, changed_config, say
from siglum.device import check_device


@dataclass(kw_only=True)
class Command(TrainingVerb):
    """Train the fusion module and the residual quantiser of a run (2-tokenizer).

    Examples:
      siglum tokenize runs/mine
      siglum tokenize runs/mine --resume --set tokenizer.rank_weight=10
    """


def run(command: Command) -> dict[str, Any]:
    """Make stage 2."""
    from siglum.run.folder import RunFolder
    from siglum.run.stages import make_tokenizer

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
