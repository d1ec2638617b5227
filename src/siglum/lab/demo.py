"""The demo: GENIUS and PRO on the drawn world, side by side, and one report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from siglum.config import RunConfig
from siglum.data.source import write_source
from siglum.encode.builtin import BuiltinEncoder
from siglum.lab.demo_report import GENIUS, NO_PD, PRO, measure, write_report
from siglum.lab.units import worker_pool
from siglum.lab.world.collection import World, world_collection
from siglum.log import Reporter, Tick, reporting
from siglum.recipes import recipe
from siglum.run.claim import Owner, claim_run, clear_run, holds_run, is_own, is_unused
from siglum.run.folder import CONFIG_FILE, RunFolder
from siglum.run.lock import lock_run
from siglum.run.stages import ensure, make_vectors, settle
from siglum.types import SiglumError

T = TypeVar("T")
RECIPE_OF = {PRO: "pro", GENIUS: "genius", NO_PD: "vs_sf"}


def run_demo(
    out: Path,
    *,
    scale: str,
    seed: int,
    device: str,
    resume: bool,
    say: Callable[[str], None],
    reporter: Reporter | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Train PRO in `out`, GENIUS and PRO without distillation in `out`/baselines, and write the report.

    The runs are independent once they have the fused space, so they go through two processes of one thread each. An
    earlier demo of this world is made anew, or continued with `resume`; what else `out` holds is refused, unless it
    is a run that `overwrite` lets go.
    """
    folders = {PRO: out, GENIUS: out / "baselines" / GENIUS, NO_PD: out / "baselines" / NO_PD}
    configs = {name: with_world_seed(recipe(RECIPE_OF[name], scale, seed)) for name in folders}
    with ExitStack() as held:
        held.enter_context(lock_run(out, "siglum demo", say=say))
        if not resume:
            _refuse_others(out, configs[PRO], overwrite)
        # The processes that train the baselines take no lock themselves.
        for name in (GENIUS, NO_PD):
            held.enter_context(lock_run(folders[name], "siglum demo", say=say))
        for name, folder in folders.items():
            _begin(folder, configs[name], resume)
        return _run(folders, configs, device, resume, say, reporter)


def _begin(folder: Path, config: RunConfig, resume: bool) -> None:
    """Begin one of the runs, or go on with it."""
    if not resume:
        clear_run(folder)
    elif (folder / CONFIG_FILE).exists():  # refused before anything is written
        settle(RunFolder(folder), config, remedy="start without --resume")
    claim_run(folder, _owner(config))
    RunFolder(folder).write_config(config)
    write_source(folder, "world", items=config.world.items, seed=config.seed)


def _run(
    folders: dict[str, Path],
    configs: dict[str, RunConfig],
    device: str,
    resume: bool,
    say: Callable[[str], None],
    reporter: Reporter | None,
) -> dict[str, Any]:
    """Make every stage that is not there yet, measure, and write the report."""
    out, seed = folders[PRO], configs[PRO].seed
    world = World(configs[PRO].world.items, seed)
    pro = RunFolder(out)

    def encode() -> None:
        collection = world_collection(world, configs[PRO].world.variants)
        make_vectors(pro, collection, BuiltinEncoder(), identity=_identity(configs[PRO]), resume=resume)

    words = {
        "vectors": f"drawing and encoding a world of {world.num_items:,} items",
        "dense": "training the fused space (dense search)",
    }
    options: dict[str, Any] = {"device": device, "resume": resume}
    ensure(pro, *words, makers={"vectors": encode}, tell=lambda stage: say(words[stage]), **options)
    for name in (GENIUS, NO_PD):
        ensure(RunFolder(folders[name]), *words, share=pro, **options)
    say("training tokenizers and decoders: PRO, GENIUS, and PRO without distillation")
    _in_parallel(_train, [(name, folders[name], device, resume) for name in folders], reporter)
    say("asking every test query, against its own pool and against the union of all pools")
    jobs = [(name, folders[name], device) for name in folders]
    measured = dict(zip(folders, _in_parallel(measure, jobs, reporter), strict=True))
    return write_report(pro, measured, configs)


def _identity(config: RunConfig) -> str:
    return f"world {config.world.items} {config.seed} {config.world.variants}"


def _owner(config: RunConfig) -> Owner:
    """Return whose run a demo is; one that was encoded step by step is no demo, though of the same world."""
    return Owner(f"demo of {_identity(config)}", {"kind": "world", "items": config.world.items, "seed": config.seed})


def _refuse_others(out: Path, config: RunConfig, overwrite: bool) -> None:
    """Refuse to begin a demo where something else lies than an earlier one of the same world."""
    is_demo = (out / "baselines" / GENIUS).is_dir()  # made before anything else is written
    if not holds_run(out):
        if is_demo or is_unused(out):
            return
        raise SiglumError(f"{out} is there already and holds no demo; choose another --out.")
    if not overwrite and not (is_demo and is_own(out, _owner(config))):
        what = "a demo of another scale or seed" if is_demo else "a run that is no demo"
        raise SiglumError(f"{out} holds {what}; choose another --out, or have that run removed with --overwrite.")


def with_world_seed(config: RunConfig) -> RunConfig:
    """Return the config with the world drawn from the run's own seed."""
    return replace(config, world=replace(config.world, seed=config.seed))


def _work(task: Callable[..., T], arguments: Sequence[Any], reporter: Reporter | None) -> T:
    """Run a job whose first argument is its name, which goes before all that it reports."""

    def tell(tick: Tick) -> None:
        if reporter is not None:
            reporter(replace(tick, label=f"{arguments[0]} {tick.label}"))

    with reporting(tell):
        return task(*arguments)


def _in_parallel(task: Callable[..., T], jobs: Sequence[Sequence[Any]], reporter: Reporter | None) -> list[T]:
    """Run jobs (name, more arguments) in two worker processes and return their results in order."""
    with worker_pool(2) as pool:
        futures = [pool.submit(_work, task, arguments, reporter) for arguments in jobs]
        return [future.result() for future in futures]


def _train(name: str, folder: Path, device: str, resume: bool) -> None:
    stages = ("tokenizer", "index") if name == NO_PD else ("tokenizer", "decoder", "index")
    ensure(RunFolder(folder), *stages, device=device, resume=resume)
