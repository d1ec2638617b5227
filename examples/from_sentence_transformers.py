"""Coming from sentence-transformers: the same model encodes, and Siglum learns which passage answers which question."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer, util
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
from tokenizers import Tokenizer, models, pre_tokenizers

import siglum

COLOURS, THINGS = (
    ("red", "blue", "green", "grey", "black", "pink"),
    ("cat", "dog", "car", "tree", "boat", "house", "lamp"),
)
PLACES = ("in the garden", "on the roof", "by the sea", "at night", "in the snow", "in town", "far away")
CORPUS = [f"a {colour} {thing} {place}" for colour in COLOURS for thing in THINGS for place in PLACES]
QUESTIONS = [f"where is the {colour} {thing} {place}?" for colour in COLOURS for thing in THINGS for place in PLACES]


def load_model() -> SentenceTransformer:
    """Make a small model of random word vectors, in the place of SentenceTransformer("all-MiniLM-L6-v2")."""
    torch.manual_seed(0)
    words = sorted({word for text in CORPUS + QUESTIONS for word in text.replace("?", "").split()})
    tokenizer = Tokenizer(models.WordLevel({word: row for row, word in enumerate(["[UNK]", *words])}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=64), Normalize()], device="cpu")


def main(folder: Path) -> None:
    torch.set_num_threads(1)  # the models are small: more threads would only wait for each other
    model = load_model()

    # corpus_embeddings = model.encode(corpus)
    # hits = util.semantic_search(model.encode(queries), corpus_embeddings, top_k=5)
    # print(hits[0][0]["corpus_id"], hits[0][0]["score"])
    corpus, asked = model.encode(CORPUS), model.encode(QUESTIONS)
    pairs = np.random.default_rng(0).permutation(len(CORPUS))[:250]  # questions whose answers are known
    config = siglum.recipe("pro", "tiny")
    siglum.fit(corpus, asked[pairs], pairs, item_ids=CORPUS, config=config, folder=folder / "run")
    model.save(str(folder / "model"))  # or its name on the hub
    retriever = siglum.Retriever.load(folder / "run", encoder=f"sentence:{folder / 'model'}")
    hits = retriever.search(QUESTIONS, k=5)
    print(f"{QUESTIONS[7]} -> {hits[7][0].item_id}, similarity {hits[7][0].similarity:.2f}")

    theirs = util.semantic_search(torch.from_numpy(asked), torch.from_numpy(corpus), top_k=5)
    unseen = np.setdiff1d(np.arange(len(CORPUS)), pairs)
    mine = np.mean([CORPUS[row] in [hit.item_id for hit in hits[row]] for row in unseen])
    other = np.mean([row in [hit["corpus_id"] for hit in theirs[row]] for row in unseen])
    print(f"{len(unseen)} questions never seen, answer among the first 5: {mine:.2f} (semantic_search: {other:.2f})")
    assert mine > 0.8 and retriever.search(QUESTIONS[7], k=1)[0].item_id == CORPUS[7]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch))
