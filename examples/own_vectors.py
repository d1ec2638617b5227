"""Own vectors: from numpy arrays to a retriever; search, add, remove, save, load."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import torch

import siglum


def views(things: np.ndarray, lens: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Show things through a lens, with noise: a stand-in for the embeddings of a pretrained model."""
    return (things + 0.1 * rng.normal(size=things.shape)) @ lens


def success(retriever: siglum.Retriever, queries: np.ndarray, wanted: list[str], k: int, **options: Any) -> float:
    found = retriever.search_features(siglum.features(queries), k=k, **options)
    return float(np.mean([name in [hit.item_id for hit in hits] for name, hits in zip(wanted, found, strict=True)]))


def main() -> None:
    torch.set_num_threads(1)  # the models are small: more threads would only wait for each other
    rng = np.random.default_rng(0)
    things, item_lens, query_lens = rng.normal(size=(1_050, 8)), rng.normal(size=(8, 48)), rng.normal(size=(8, 48))
    known, late = things[:1_000], things[1_000:]

    # Item vectors, query vectors, and for every query the row of the item that answers it.
    items, answers = views(known, item_lens, rng), np.repeat(np.arange(1_000), 4)
    queries = views(known[answers], query_lens, rng)
    retriever = siglum.fit(items, queries, answers, config=siglum.recipe("pro", "tiny"))

    fresh, wanted = views(known[:300], query_lens, rng), [f"item{row}" for row in range(300)]
    print("300 new queries over 1,000 items, Success@1 and @10")
    for scorer in ("fused", "decoder", "geometry"):
        print(f"  {scorer:<9}", *(f"{success(retriever, fresh, wanted, k, scorer=scorer):.2f}" for k in (1, 10)))
    for hit in retriever.search_features(siglum.features(fresh[:1]), k=3)[0]:
        print(f"  {hit.rank}. {hit.item_id:<8} score {hit.score:6.2f}  codes {hit.codes}")

    names = [f"late{row}" for row in range(50)]
    retriever.add(siglum.features(views(late, item_lens, rng), ids=names))
    share = success(retriever, views(late, query_lens, rng), names, 10)
    print(f"added 50 items without training: {len(retriever.index):,} items, Success@10 on the new ones {share:.2f}")
    retriever.remove(names[:25])
    print(f"removed 25 of them: {len(retriever.index):,} items")

    with tempfile.TemporaryDirectory() as folder:
        retriever.save(folder)
        again = siglum.Retriever.load(folder)
        before, after = (one.search_features(siglum.features(fresh), k=5) for one in (retriever, again))
        print("saved and loaded:", "the same hits" if before == after else "other hits!")


if __name__ == "__main__":
    main()
