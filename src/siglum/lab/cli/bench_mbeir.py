"""`siglum bench mbeir`: train one universal model on M-BEIR and measure it on the paper's nine tasks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from siglum.console.commands import WritingVerb, override, say, write_document
from siglum.device import check_device
from siglum.types import SiglumError


@dataclass(kw_only=True)
class Command(WritingVerb):
    """Train one universal model on M-BEIR and measure it, dense search beside it, on the paper's nine tasks.

    Encodes, trains tokenizer and decoder, builds the index and evaluates; --resume keeps what is finished. Writes OUT
    (JSON) and, beside it, a Markdown table in which the paper's rows are marked as quoted and ours as measured.

    Examples:
      siglum bench mbeir --data M-BEIR --encoder uniir-clip-sf:clip_sf_large.pth --out mbeir.json --device cuda
      siglum bench mbeir --data M-BEIR --encoder builtin --scale tiny --tasks nights_task4 --out try.json
    """

    LOCKS = "run"
    data: Path
    """M-BEIR's folder, with query, cand_pool, qrels, instructions and mbeir_images."""
    encoder: str
    """Which encoder makes the features, such as uniir-clip-sf:clip_sf_large.pth."""
    out: Path
    """Where results go, a .json file; the table goes beside it as .md."""
    run: Path = Path("runs/mbeir")
    """The run folder."""
    scale: str = "paper"
    """tiny, demo, small, captions_small, captions or paper."""
    pool: Literal["local", "union"] = "local"
    """Ask test queries against their task's pool, as the paper does, or against the union of all pools."""
    tasks: tuple[str, ...] = ()
    """Tasks such as mscoco_task0; the paper's nine unless given, all for M-BEIR's sixteen."""
    prompt: Literal["seeded", "first"] = "seeded"
    """Which instruction a query gets: drawn by seed, or the first one."""
    against: tuple[Literal["genius", "genius_original"], ...] = ()
    """Baselines to train and measure too, on the same vectors."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Override a setting of all systems, such as --set decoder.epochs=3; may be repeated."""
    seed: int = 0
    """Seed of training, of the prompts and of the choice among a query's positives."""
    workers: int = 4
    """Threads that decode pictures."""
    strict: bool = False
    """Refuse unreadable pictures instead of skipping and counting them."""
    resume: bool = False
    """Keep finished stages and measured tasks, and continue a killed stage."""


def run(command: Command) -> dict[str, Any]:
    """Make every stage that is not there yet, measure, and write the table."""
    from siglum.lab.cli.mbeir_table import build_report, markdown
    from siglum.lab.mbeir.bench import Reading, run_mbeir
    from siglum.recipes import recipe

    if command.out.suffix != ".json":
        raise SiglumError(f"--out is {command.out}, but must be a .json file; the table goes beside it as .md.")
    recipes = {"pro": "mbeir"} | {str(baseline): str(baseline) for baseline in command.against}
    configs = {name: override(recipe(of, command.scale, command.seed), command.set) for name, of in recipes.items()}
    reading = Reading(
        command.data,
        command.encoder,
        union=command.pool == "union",
        tasks=command.tasks or None,
        prompt=command.prompt,
        seed=command.seed,
        strict=command.strict,
        workers=command.workers,
    )
    device = check_device(command.device)
    found = run_mbeir(command.run, reading, configs, device=device, resume=command.resume, say=say)
    facts = {
        "encoder": command.encoder,
        "dense_space": found.dense_space,
        "recipe": "mbeir",
        "scale": command.scale,
        "pool": command.pool,
        "prompt": command.prompt,
        "seed": command.seed,
        "settings": list(command.set),
    }
    report = build_report(facts, found.reading, found.tasks, found.results)
    write_document(command.out, report, markdown(report))
    return report
