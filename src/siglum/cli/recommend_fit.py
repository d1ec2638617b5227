"""`siglum recommend fit`: from users' sequences to a recommender."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from siglum.console.commands import WritingVerb, override, say
from siglum.device import check_device
from siglum.types import SiglumError

if TYPE_CHECKING:
    from siglum.data.sequences import Sequences
    from siglum.types import Features


@dataclass(kw_only=True)
class Command(WritingVerb):
    """Learn what comes next in users' sequences: item codes, a decoder that reads histories, and an index.

    The data is a folder with sequences.txt (and items.jsonl, text_features.npy, image_features.npy), MovieLens-1M, or a
    file of Amazon reviews of 2014 or 2023 with its meta file beside it. Items without features are encoded. A user's
    last item is for test and the one before for validation.

    Examples:
      siglum recommend fit --data beauty --out runs/beauty --device cuda
      siglum recommend fit --data beauty --out runs/small --scale small --recipe pro
      siglum recommend fit --data ml-1m --encoder sentence:all-MiniLM-L6-v2 --split time --out runs/films
    """

    LOCKS = "out"
    data: Path
    """A folder of sequences, or a file of reviews."""
    out: Path
    """The run folder to make."""
    recipe: str = "tiger"
    """tiger, tiger_strong, tiger_rqvae, bridge, liger, pro, or pro_without_pd, _vs or _sf."""
    scale: str = "paper"
    """paper (a GPU), small (two CPU cores) or tiny (of no use)."""
    split: str = "leave_one_out"
    """leave_one_out, or time: one moment for all users, where times are known."""
    encoder: str = ""
    """What makes item vectors where the folder has none, such as offline, minilm or builtin; and for items to come."""
    core: int = 5
    """The fewest events of users and items that raw reviews are kept with."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Override a setting, such as --set decoder.epochs=20; may be repeated."""
    seed: int = 0
    """Seed of training, and of the order that items get when they are read."""
    resume: bool = False
    """Go on after a kill; nothing that is finished is made again."""


def run(command: Command) -> dict[str, Any]:
    """Read, fit, and say what came of it."""
    from siglum.data.sequence_files import read_sequences
    from siglum.recommend.fitting import fit_run, prepare
    from siglum.recommend.recommender import Recommender
    from siglum.recommenders import fit_to_items, recommender
    from siglum.run.folder import RunFolder

    device = check_device(command.device)
    if not command.data.exists():
        raise SiglumError(f"{command.data} does not exist.")
    config = recommender(command.recipe, command.scale, command.seed)
    sequences = read_sequences(command.data, seed=command.seed, core=command.core)
    found, encoder = _features(command, sequences, device)
    config = override(fit_to_items(config, found, len(sequences.row_E)), command.set)
    prepared = prepare(sequences, found, config, split=command.split, as_given=True, encoder=encoder)
    say(f"{len(sequences):,} users, {len(found):,} items, {len(sequences.row_E):,} events")
    for what, count in sequences.notes.items():
        say(f"{what}: {count:,}")
    seconds = fit_run(RunFolder(command.out), prepared, device=device, resume=command.resume)
    fitted = Recommender.load(command.out, device=device)
    told = fitted.disambiguation()
    if told is not None:
        say(
            f"{told.items:,} items share their codes with others (at most {told.largest}) and are told apart by a last"
            f" one; {told.left:,} still share all"
        )
    say(f"next: siglum recommend eval {command.out}")
    return {
        "run": str(command.out),
        "users": len(sequences),
        "items": len(found),
        "events": len(sequences.row_E),
        "disambiguation": None if told is None else told._asdict(),
        "seconds": seconds,
    }


def _features(command: Command, sequences: Sequences, device: str) -> tuple[Features, str]:
    """Return the features of the items, those of the folder or encoded now, and what encoded them."""
    from dataclasses import replace

    from siglum.encode.registry import build_encoder
    from siglum.encode.run import encode_rows

    if sequences.features is not None:
        if command.encoder:
            raise SiglumError(f"{command.data} has features of its items; leave --encoder out, or take them away.")
        return sequences.features, "none"
    encoder = build_encoder(command.encoder, device=device) if command.encoder else None
    if encoder is None:
        raise SiglumError(f"{command.data} has no features of its items; name what makes them by --encoder.")
    texts = sequences.texts or [item.text for item in sequences.items]
    # What has no words at all is read by its name, since every item needs a vector.
    rows = [replace(item, text=text or item.id) for item, text in zip(sequences.items, texts, strict=True)]
    say(f"encoding {len(rows):,} items")
    return encode_rows(rows, encoder, strict=True), command.encoder
