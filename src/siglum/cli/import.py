"""`siglum import`: another library's model becomes a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from siglum.console.commands import WritingVerb, say


@dataclass(kw_only=True)
class Command(WritingVerb):
    """Make a run of GENIUS' checkpoint and features, ready to be searched and exported.

    The checkpoint is that of its generator, which holds its quantiser too, or that of the quantiser alone, which ranks
    by geometry. Nothing that is stored in it is run.

    Examples:
      siglum import --genius genir.pth --items cand_pool_mscoco_task0_test_IT_dict.pt --out runs/genius
      siglum import --genius genir.pth --items pool.pt --encoder uniir-clip-sf:clip_sf_large.pth --out runs/genius
    """

    LOCKS = "out"
    genius: Path
    """GENIUS' checkpoint (.pth)."""
    items: Path
    """Features of the items: GENIUS' dictionary (.pt), or any file of features that siglum encode takes."""
    encoder: str = "none"
    """What encodes texts and pictures of searches, as siglum encode has it; none for searches by features alone."""
    out: Path
    """The run folder to make."""
    overwrite: bool = False
    """Remove the run of another collection that OUT holds."""


def run(command: Command) -> dict[str, Any]:
    """Read the model, code the items and write the run."""
    from siglum.bridges.genius import read_genius
    from siglum.data.precomputed import read_features

    items = read_features(command.items)
    retriever = read_genius(command.genius).retriever(items, command.encoder, device=command.device)
    retriever.save(command.out, overwrite=command.overwrite)
    ranked = "geometry" if retriever.decoder is None else "its decoder"
    say(f"{len(items):,} items of GENIUS in {command.out}, ranked by {ranked}")
    return {"run": str(command.out), "items": len(items), "scorer": retriever.config.scorer}
