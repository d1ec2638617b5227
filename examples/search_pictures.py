"""Search pictures by words, by picture, and by picture and words, in a small world of drawn scenes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from siglum import Retriever, recipe
from siglum.encode.builtin import BuiltinEncoder
from siglum.lab.world.collection import World, world_collection
from siglum.run.folder import RunFolder
from siglum.run.stages import make_decoder, make_index, make_tokenizer, make_vectors


def train(world: World, folder: Path) -> Retriever:
    """Make every stage of a run: vectors, tokenizer, decoder, index."""
    run = RunFolder(folder)
    run.write_config(recipe("pro", "tiny"))
    make_vectors(run, world_collection(world, variants=2), BuiltinEncoder(), identity="a small world")
    make_tokenizer(run)
    make_decoder(run)
    make_index(run)
    return Retriever.load(folder)


def describe(world: World, item_id: str) -> str:
    scene = world.scene(int(item_id[1:8]))
    parts = [f"{group.count} {group.size} {group.colour} {group.shape}" for group in scene.groups]
    return f"{', '.join(parts)} on {scene.background}"


def main() -> None:
    torch.set_num_threads(1)  # the models are small: more threads would only wait for each other
    world = World(1_200, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        retriever = train(world, Path(folder))
        pictures = list(world.pool("test", "t2i"))
        for kind, task in (("By words", "t2i"), ("By picture", "i2i"), ("By picture and words", "it2i")):
            queries = list(world.queries("test", task))
            found = retriever.search(queries, k=5, within=pictures)
            pairs = zip(queries, found, strict=True)
            ranks = [next((hit.rank for hit in hits if hit.item_id in query.positives), 9) for query, hits in pairs]
            best = ranks.index(min(ranks))
            print(f"\n{kind}: {queries[best].text or describe(world, queries[best].positives[0])}")
            for hit in found[best][:3]:
                mark = "*" if hit.item_id in queries[best].positives else " "
                print(f" {mark} {hit.rank}. {hit.score:6.2f}  {hit.item_id}  {describe(world, hit.item_id)}")
            print(f"   the right one of {len(pictures)} pictures is among the first 5 for", end=" ")
            print(f"{sum(rank <= 5 for rank in ranks)} of {len(ranks)} queries")


if __name__ == "__main__":
    main()
