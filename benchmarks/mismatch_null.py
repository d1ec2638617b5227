"""Is a large epsilon an artefact? The decoder's mismatch on a trained run, beside decoders that know nothing.

Over all prefixes of a task's pool, level by level:
    python benchmarks/mismatch_null.py runs/demo --task t2i --queries 100
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from siglum.lab.theory.bound import mismatch_readings
from siglum.measure.prefixes import Prefixes, walk
from siglum.measure.systems import open_systems
from siglum.run.folder import RunFolder
from siglum.search.scorers import DecoderScorer, GeometryScorer, OracleScorer


def main() -> None:
    """Read the arguments and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--task", default="")
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--tau", type=float, default=0.05)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    systems = open_systems(RunFolder(options.run))
    tasks = {task.name: task for task in systems.vectors.of_split("test")}
    task = (tasks[options.task] if options.task else next(iter(tasks.values()))).spread(options.queries)
    retriever, items = systems.retriever, systems.vectors.items
    index = systems.coded.index_of(task.pool_rows)
    books, decoder = retriever.tokenizer.codebooks(), retriever.decoder
    assert decoder is not None, "the run has no decoder"
    rows = index.rows([items.ids[int(found[0])] for found in task.positives])
    prefixes, query = Prefixes(index), systems.coded.query_MD[torch.as_tensor(task.query_rows)]
    scorers = [OracleScorer(books), DecoderScorer(decoder), GeometryScorer(books)]
    rng, table = np.random.default_rng(0), []
    for level, walked in enumerate(walk(prefixes, scorers, query, [None] * index.levels)):
        shape = (len(query), prefixes.count[level])
        oracle, log_prob, gain = (score.reshape(shape) for score in walked.score_SC)
        found = mismatch_readings(oracle, log_prob, gain, prefixes.of_rows(level, rows), options.tau, rng)
        table.append({"level": level, "prefixes": shape[1], **{k: round(float(v.mean()), 3) for k, v in found.items()}})
    names = list(table[0])
    print("  ".join(names))
    for row in table:
        print("  ".join(f"{row[name]:>{len(name)}}" for name in names))
    if options.out:
        options.out.write_text(json.dumps({"tau": options.tau, "task": task.name, "levels": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
