"""What comes next? A recommender on a small world whose rule is known: the next thing depends on the last two.

python examples/recommend.py
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

import siglum
from siglum.recommend import fit, recommender

SIDE, USERS, LENGTH = 8, 200, 10


def main() -> None:
    torch.set_num_threads(1)
    rng, sequences = np.random.default_rng(0), []
    for _ in range(USERS):
        own = [tuple(rng.integers(0, SIDE, 2)) for _ in range(2)]
        while len(own) < LENGTH:
            own.append((own[-2][0], (own[-1][1] + own[-2][1]) % SIDE))
        sequences.append([f"{row}-{column}" for row, column in own])
    items = [f"{row}-{column}" for row in range(SIDE) for column in range(SIDE)]
    place = np.arange(SIDE * SIDE)
    vectors = np.concatenate([8 * np.eye(SIDE)[place // SIDE], np.eye(SIDE)[place % SIDE]], 1).astype(np.float32)

    config = recommender("tiger", "tiny")
    history = replace(config.decoder.history, items=4, every=5)
    config = replace(
        config,
        fusion=replace(config.fusion, standardise=False),
        tokenizer=replace(config.tokenizer, vocab=(SIDE, SIDE), disambiguation=4),
        decoder=replace(
            config.decoder, d_model=64, d_ff=128, d_kv=16, dropout=0.0, epochs=20, batch_size=64, history=history
        ),
    )
    fitted = fit(sequences, vectors, item_ids=items, config=config, seed=0)
    told = fitted.disambiguation()
    print(f"{len(fitted)} items, {told.items if told else 0} of them share their codes with others")

    found = fitted.next_many([own[:-1] for own in sequences], k=5)
    hits = [own[-1] in {hit.item_id for hit in top} for own, top in zip(sequences, found, strict=True)]
    print(f"the next item is among the first 5 of {len(items)} for {100 * np.mean(hits):.0f} % of users")

    own = sequences[0][:-1]
    print("after", " ".join(own[-3:]), "comes", sequences[0][-1])
    for hit in fitted.next(own, k=3):
        print(f" {hit.rank}. {hit.item_id}  {hit.codes}  {hit.score:.2f}")

    fitted.add(siglum.features(vectors[:1], ["new"]))
    print("a new item, without training:", fitted.index.codes_of(["new"]).tolist()[0])


if __name__ == "__main__":
    main()
