"""Is my tokenizer good enough? Health and survival of two vocabulary schedules, before any decoder is trained."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import torch

from siglum import features, recipe
from siglum.data.collection import assemble
from siglum.fuse.contrastive import embed, fit_fusion
from siglum.fuse.modules import Fusion
from siglum.measure.health import tokenizer_health
from siglum.measure.survival import token_survival
from siglum.tokenize.schedule import ascending, equal_bits
from siglum.tokenize.train import fit_tokenizer
from siglum.types import Vectors

ITEMS, BEAM = 2_000, 10


def collection() -> Vectors:
    """Return items and queries as one's own arrays would give them, every tenth query held out."""
    rng = np.random.default_rng(0)
    things, answers = rng.normal(size=(ITEMS, 12)), np.repeat(np.arange(ITEMS), 3)
    items = features(things @ rng.normal(size=(12, 64)), ids=[f"item{row}" for row in range(ITEMS)])
    queries = features((things[answers] + 0.3 * rng.normal(size=(len(answers), 12))) @ rng.normal(size=(12, 64)))
    about = [("val" if row % 10 == 0 else "train", "", [f"item{item}"]) for row, item in enumerate(answers)]
    return assemble(items, queries, about, {})


def report(name: str, vocab: tuple[int, ...], vectors: Vectors, fusion: Fusion) -> None:
    config = replace(recipe("pro", "tiny").tokenizer, vocab=vocab)
    tokenizer = fit_tokenizer(vectors, copy.deepcopy(fusion), config)
    item, query = (embed(tokenizer.fusion, rows, "cpu") for rows in (vectors.items, vectors.queries))
    codes = tokenizer.quantizer.encode(item, torch.as_tensor(vectors.items.modality.astype(np.int64)))
    health, held_out = tokenizer_health(tokenizer.quantizer, item, codes), vectors.tasks[0]
    target_codes = codes[torch.as_tensor(np.concatenate(held_out.positives))]
    survival = token_survival(query[held_out.query_rows], target_codes, tokenizer.codebooks(), BEAM, first_residual=1)
    print(f"\n{name}: {health.distinct:,} distinct codes for {health.items:,} items")
    print("  level  codewords  dead  error left  survival  chance")
    for level, (own, share) in enumerate(zip(health.levels[1:], survival, strict=True), 1):
        print(f"  {level:>5}  {own.size:>9}  {own.dead:>4}  {own.error:>10.3f}  {share:>8.2f}  {BEAM / own.size:>6.2f}")


def main() -> None:
    torch.set_num_threads(1)  # the models are small: more threads would only wait for each other
    vectors = collection()
    fusion, _ = fit_fusion(vectors, recipe("pro", "tiny").fusion)
    schedule = ascending(6, (16, 64, 128))
    report("ascending", schedule, vectors, fusion)
    report("uniform with as many bits", equal_bits(schedule), vectors, fusion)
    print(f"\nSurvival: the right code is among the {BEAM} best of its level by inner product with the query.")


if __name__ == "__main__":
    main()
