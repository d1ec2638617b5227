"""Coming from PyLate: documents by id, hits as ids and scores; a vector a text, where PyLate keeps one a token."""

from __future__ import annotations

import numpy as np
import torch

import siglum

WORDS, DIM = 400, 32


def encode(texts: list[list[int]], vectors: np.ndarray) -> list[np.ndarray]:
    """Return token vectors, one array a text, as `models.ColBERT(...).encode(texts)` does."""
    return [vectors[text] for text in texts]


def pooled(tokens: list[np.ndarray]) -> np.ndarray:
    """Return one unit vector a text: the mean of its tokens', as PyLate's pooling goes on to the end."""
    rows = np.stack([text.mean(0) for text in tokens])
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def main() -> None:
    torch.set_num_threads(1)  # the models are small: more threads would only wait for each other
    rng = np.random.default_rng(0)
    words = rng.normal(size=(WORDS, DIM))
    texts = [rng.integers(WORDS, size=12).tolist() for _ in range(300)]
    documents_ids = [f"doc-{row}" for row in range(300)]
    questions = [rng.permutation(text)[:6].tolist() for text in texts for _ in range(6)]
    documents_embeddings, queries_embeddings = encode(texts, words), encode(questions, words)
    answers = np.repeat(np.arange(300), 6)

    # index = indexes.PLAID(index_folder="pylate-index", index_name="index", override=True)
    # index.add_documents(documents_ids=documents_ids, documents_embeddings=documents_embeddings)
    # scores = retrieve.ColBERT(index=index).retrieve(queries_embeddings=queries_embeddings, k=10)
    known = answers < 270  # the last thirty documents come later
    retriever = siglum.fit(
        pooled(documents_embeddings[:270]),
        pooled([one for one, seen in zip(queries_embeddings, known, strict=True) if seen]),
        answers[known],
        item_ids=documents_ids[:270],
        config=siglum.recipe("pro", "tiny"),
    )
    retriever.add(siglum.features(pooled(documents_embeddings[270:]), ids=documents_ids[270:]))
    asked = pooled(encode([rng.permutation(text)[:6].tolist() for text in texts], words))
    found = retriever.search_features(siglum.features(asked), k=10, beam=50)
    scores = [[{"id": hit.item_id, "score": hit.score} for hit in hits] for hits in found]
    right = [name in [one["id"] for one in row] for name, row in zip(documents_ids, scores, strict=True)]
    print(f"document among the first 10: {np.mean(right[:270]):.2f}, of those added later {np.mean(right[270:]):.2f}")
    assert np.mean(right[:270]) > 0.9 and np.mean(right[270:]) > 0.5

    # index.remove_documents(["doc-7"])
    retriever.remove(["doc-7"])
    assert "doc-7" not in [hit.item_id for hit in retriever.search_features(siglum.features(asked[7:8]))[0]]
    print(f"removed one: {len(retriever)} documents")


if __name__ == "__main__":
    main()
