"""Bad input: the command line, the files it takes and the Python API, each with things nobody should give them.

What is asked of every trial: an answer that is right, or one sentence; never a traceback, and nothing changed by what
was refused.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from faultlib import fuzz_api, fuzz_cli, fuzz_files, fuzz_parts
from faultlib.campaign import Base, Trial
from faultlib.told import copy

BAR = 10_000
CASES = {
    **{f"command:{name}": fuzz_cli.CASES[name] for name in fuzz_cli.CASES},
    **{f"files:{name}": fuzz_files.CASES[name] for name in fuzz_files.CASES},
    **{f"api:{name}": fuzz_api.CASES[name] for name in fuzz_api.CASES},
    **{f"parts:{name}": fuzz_parts.CASES[name] for name in fuzz_parts.CASES},
}


def plan(base: Base, tries: int | None) -> list[Trial]:
    """Return trials, evenly over everything that takes input."""
    return base.spread("fuzz", list(CASES), tries or BAR)


def act(base: Base, trial: Trial, scratch: Path) -> dict[str, Any]:
    """Try one bad input."""
    import webbrowser

    webbrowser.open = lambda *args, **options: True  # type: ignore[assignment]
    rng = Random(f"fuzz {base.seed} {trial.case} {trial.number}")
    if trial.case.startswith(("command", "files")):
        copy(base.root / "mine", scratch / "run")
    way, faults = CASES[trial.case](base, rng, scratch)
    return {"faults": [one | {"what": f"{one['what']} ({way[:300]})"} for one in faults], "way": way[:300]}
