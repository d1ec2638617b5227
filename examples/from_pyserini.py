"""Coming from pyserini: a JSONL collection, topics and qrels in, a TREC run out, and the same measures of it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import ir_measures
import torch
from ir_measures import RR, R

from siglum.cli.main import main as siglum  # the command line, in this process

COLOURS, THINGS = (
    ("red", "blue", "green", "grey", "black", "pink"),
    ("cat", "dog", "car", "tree", "boat", "house", "lamp"),
)
PLACES = ("garden", "roof", "shore", "night", "snow", "town", "hill")
NAMES = [(colour, thing, place) for colour in COLOURS for thing in THINGS for place in PLACES]


def write(folder: Path) -> None:
    """Write what pyserini reads as well: documents with id and contents, topics, and qrels."""
    records = {"items": [], "train": [], "test": []}
    for row, (colour, thing, place) in enumerate(NAMES):
        records["items"].append({"id": f"doc{row}", "text": f"a {colour} {thing} {place}"})  # pyserini: "contents"
        split = "test" if row % 5 == 0 else "train"
        asked = {"id": f"q{row}", "text": f"find the {thing} {colour} {place}"}
        records[split].append(asked if split == "test" else {**asked, "positives": [f"doc{row}"]})
    for name, lines in records.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "qrels.txt").write_text("".join(f"q{row} 0 doc{row} 1\n" for row in range(0, len(NAMES), 5)))


def main(folder: Path) -> None:
    torch.set_num_threads(1)  # the models are small: more threads would only wait for each other
    write(folder)

    # python -m pyserini.encode input --corpus collection output --embeddings indexes/mine --to-faiss encoder ...
    # python -m pyserini.search.faiss --index indexes/mine --topics topics.tsv --output run.txt --hits 100
    # python -m pyserini.eval.trec_eval -m recip_rank -m recall.10 qrels.txt run.txt
    index = folder / "mine"
    for command in (
        f"encode --out {index} --items {folder}/items.jsonl --train {folder}/train.jsonl --scale tiny"
        " --set fusion.epochs=30 --set fusion.batch_size=64",
        *(f"{verb} {index}" for verb in ("tokenize", "train", "index")),
        f"search {index} --queries {folder}/test.jsonl --format trec --out {folder}/run.txt -k 50 --beam 50",
    ):
        assert siglum(command.split()) == 0
    qrels = ir_measures.read_trec_qrels(str(folder / "qrels.txt"))
    measured = ir_measures.calc_aggregate([RR @ 10, R @ 10], qrels, ir_measures.read_trec_run(str(folder / "run.txt")))
    print(f"RR@10 {measured[RR @ 10]:.2f}, R@10 {measured[R @ 10]:.2f} for questions never seen")
    assert measured[R @ 10] > 0.8


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch))
