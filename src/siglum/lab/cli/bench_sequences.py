"""`siglum bench sequences`: train and measure recommenders on users' sequences."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siglum.console.commands import DeviceVerb, say, write_document
from siglum.types import SiglumError

if TYPE_CHECKING:
    from siglum.lab.sequences.systems import SequenceSetting
    from siglum.lab.units import Work


@dataclass(kw_only=True)
class Command(DeviceVerb):
    """Train and measure recommenders, TIGER and PRO among them, over several seeds.

    The folder holds sequences.txt, items.jsonl and text_features.npy. Every unit, a training and a seed, leaves a part
    beside the output; the same command goes on where it was stopped, also inside a training. Weights are chosen on
    validation; test is asked once.

    Examples:
      siglum bench sequences --data beauty --seeds 3 --out beauty.json --device cuda
      siglum bench sequences --data beauty --scale small --units plain,sasrec,tiger --out small.json
    """

    data: Path
    """The folder of sequences."""
    out: Path
    """Where the document goes, a .json file; the table (.md) and the folder of parts (.parts) lie beside it."""
    seeds: int = 1
    """Number of seeds, from 0 on."""
    scale: str = "paper"
    """paper (a GPU), small (two CPU cores) or tiny (of no use)."""
    split: str = "leave_one_out"
    """leave_one_out or time."""
    units: str = "all"
    """Trainings to run, by commas: plain, sasrec, tiger, tiger_strong, liger, pro, pro_without_pd, pro_without_vs,
    held_out, held_out_pro."""
    jobs: int = 1
    """Trainings at a time, each in a process of its own."""
    limit: float = 0.0
    """Start no training after this many seconds and report what is there; 0 is no limit."""


def run(command: Command) -> dict[str, Any]:
    """Run what is missing, then write the document and the table."""
    from siglum.data.sequence_files import read_sequences
    from siglum.data.sequences import SPLITS, split_events
    from siglum.device import check_device
    from siglum.lab.cli.bench_speed import names
    from siglum.lab.sequences.systems import UNITS, SequenceSetting
    from siglum.lab.sequences.table import build_document, markdown
    from siglum.lab.units import check_counts, refuse_nothing, run_missing
    from siglum.recommenders import SCALES
    from siglum.types import one_of

    if command.out.suffix != ".json":
        raise SiglumError(f"--out is {command.out}, but must be a .json file; the table goes beside it as .md.")
    if not command.data.is_dir():
        raise SiglumError(f"--data is {command.data}, but must be a folder of sequences.")
    one_of("scale", command.scale, SCALES)
    one_of("split", command.split, SPLITS)
    check_counts(seeds=command.seeds, jobs=command.jobs)
    chosen, device = dict.fromkeys(names("unit", command.units, tuple(UNITS))), check_device(command.device)
    sequences = read_sequences(command.data)
    events, data = split_events(sequences, command.split), str(command.data.resolve())
    parts_folder, own = command.out.with_suffix(".parts"), _identity(sequences)
    work = []
    for seed in range(command.seeds):
        setting = SequenceSetting(data, parts_folder, command.scale, seed, device, command.split)
        work += [_work(setting, unit, own) for unit in chosen]
    missing = run_missing(work, jobs=command.jobs, limit=command.limit, say=say)
    parts = [one.part() for one in work if one.name not in missing]
    if not parts:
        refuse_nothing(missing.values())
    facts = {
        "category": command.data.resolve().name.lower(),
        "scale": command.scale,
        "split": command.split,
        "seeds": command.seeds,
        "users": len(events.test),
        "items": len(sequences.items),
        "events": len(sequences.row_E),
        "cold_items": int(events.cold_items(sequences).sum()),
        "missing": missing,
    }
    document = build_document(parts, facts)
    write_document(command.out, document, markdown(document))
    return document


def _identity(sequences: Any) -> str:
    """Return what tells these sequences and vectors from others, however their items are ordered."""
    import numpy as np

    from siglum.files import fingerprint

    names = [item.id for item in sequences.items]
    order = np.argsort(names)
    features = sequences.features
    rows = [] if features is None else [features.text[order], features.image[order]]
    return fingerprint(sorted(names), list(sequences.users), [names[row] for row in sequences.row_E], *rows)


def _work(setting: SequenceSetting, unit: str, data: str) -> Work:
    from dataclasses import replace

    from siglum.config import config_fingerprint
    from siglum.files import fingerprint
    from siglum.lab.experiments.machine import kind_of_device
    from siglum.lab.sequences.sasrec import trials
    from siglum.lab.sequences.systems import KEPT_FROM, measure_unit
    from siglum.lab.sources import sources_fingerprint
    from siglum.lab.units import Work
    from siglum.recommenders import RECOMMENDERS, recommender

    named = [unit] if unit in RECOMMENDERS else [KEPT_FROM[unit]] if unit in KEPT_FROM else []
    settings = [config_fingerprint(recommender(name, setting.scale, setting.seed)) for name in named]
    settings += [config_fingerprint(one) for one in trials(setting.scale)] if unit == "sasrec" else []
    code = sources_fingerprint("siglum.lab.sequences.systems")
    made_of = fingerprint(data, unit, setting.seed, setting.split, setting.scale, settings, code)
    return Work(
        f"{unit}, seed {setting.seed}",
        setting.out / "parts" / f"{unit}-{setting.seed}.json",
        f"{made_of}-{kind_of_device(setting.device)}",
        measure_unit,
        (replace(setting, made_of=made_of), unit),
    )
