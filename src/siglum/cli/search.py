"""`siglum search`: ask a question."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from siglum.cli.common import say
from siglum.device import check_device
from siglum.types import SiglumError


@dataclass(kw_only=True)
class Command:
    """Search a run by text, by picture, or by both.

    Examples:
      siglum search runs/demo "a big red star left of a blue ring"
      siglum search runs/mine --image photo.jpg -k 5
      siglum search runs/mine "make the circle blue" --image photo.jpg --json
    """

    folder: tyro.conf.Positional[Path]
    """The run folder."""
    text: tyro.conf.Positional[str] = ""
    """What to look for, in words."""
    image: Path | None = None
    """A picture to look for."""
    k: Annotated[int, tyro.conf.arg(aliases=["-k"])] = 10
    """How many hits."""
    instruction: str = ""
    """What kind of thing is wanted, such as "Find a picture that shows this."."""
    beam: int | None = None
    """Another beam width than the run's."""
    omega: float | None = None
    """Another fusion weight than the run's."""
    scorer: str | None = None
    """fused, decoder, geometry or oracle."""
    within: Path | None = None
    """Search only the ids in this text file, one a line."""
    seed: int = 0
    """Accepted for uniformity; search draws nothing at random."""
    device: str = "cpu"
    """cpu, cuda or mps."""
    json: bool = False
    """Print one JSON document on stdout."""


def run(command: Command) -> dict[str, Any]:
    """Search and print ranked ids."""
    import sys
    from dataclasses import asdict

    from siglum.search.retriever import Retriever

    retriever = Retriever.load(command.folder, device=check_device(command.device))
    if retriever.decoder is None:
        say(f"{command.folder} has no trained decoder: searching by geometry alone")
    options = {
        name: getattr(command, name) for name in ("beam", "omega", "scorer") if getattr(command, name) is not None
    }
    within = None
    if command.within is not None:
        if not command.within.exists():
            raise SiglumError(f"{command.within} does not exist.")
        within = command.within.read_text().split()
    text, instruction = command.text or None, command.instruction or None
    hits = retriever.search(text, command.image, k=command.k, instruction=instruction, within=within, **options)
    if not command.json:
        for hit in hits:
            sys.stdout.write(f"{hit.rank:>3}  {hit.score:>9.3f}  {hit.item_id:<24}  {'-'.join(map(str, hit.codes))}\n")
    return {"hits": [asdict(hit) for hit in hits]}
