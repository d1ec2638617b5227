"""Try the settings of a plan on validation, several trials at a time; what is there already is not made again.

    python benchmarks/tune.py benchmarks/tune/captions.json --data flickr8k --out runs/tune --device cuda --jobs 12

Each trial leaves OUT/tuning/parts/NAME-SEED.json as it ends; OUT/tuning.md is written from those there are.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from siglum.console.commands import say
from siglum.device import check_device
from siglum.files import write_text
from siglum.lab.experiments.run import measure
from siglum.lab.experiments.setting import Setting
from siglum.lab.tuning import Tuning, read_plan, summary


def main() -> None:
    """Run what is missing of the plan."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scale", default="")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--limit", type=float, default=0.0, help="begin no trial after this many seconds")
    given = parser.parse_args()
    setting = Setting(given.data, given.out, scale=given.scale, device=check_device(given.device))
    plan = Tuning(tuple(read_plan(given.plan)))
    (found,) = measure(setting, [plan], jobs=given.jobs, limit=given.limit, say=say)
    text = summary(found.parts).markdown()
    write_text(given.out / "tuning.md", text + "\n")
    say(text)


if __name__ == "__main__":
    main()
