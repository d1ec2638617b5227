"""Coming from faiss: the same arrays in, scores and ids out, quantisers both ways."""

from __future__ import annotations

import faiss
import numpy as np
import torch

import siglum
from siglum.bridges import CodedItems, from_faiss, to_faiss


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def main() -> None:
    torch.set_num_threads(1)  # the models are small: more threads would only wait for each other
    rng = np.random.default_rng(0)
    things, lens = rng.normal(size=(700, 8)), rng.normal(size=(8, 32))
    xb = unit(things @ lens)
    asked = np.repeat(np.arange(700), 3)
    xq = unit((things[asked] + 0.2 * rng.normal(size=(2100, 8))) @ lens)

    # index = faiss.index_factory(32, "RQ4x4")
    # index.train(xb); index.add(xb)
    # D, I = index.search(xq, 10)
    retriever = siglum.fit(xb, xq, asked, config=siglum.recipe("pro", "tiny"))  # learns from questions, not items alone
    fresh = unit((things[:200] + 0.2 * rng.normal(size=(200, 8))) @ lens)
    hits = retriever.search_features(siglum.features(fresh), k=10)
    D = np.array([[hit.score for hit in row] for row in hits])
    I = np.array([[int(hit.item_id.removeprefix("item")) for hit in row] for row in hits])  # noqa: E741
    assert D.shape == I.shape == (200, 10) and (np.diff(D) <= 0).all()

    index = faiss.index_factory(32, "RQ4x4")
    index.train(xb)
    index.add(xb)
    _, theirs = index.search(fresh, 10)
    mine, other = (float((found == np.arange(200)[:, None]).any(1).mean()) for found in (I, theirs))
    print(f"right item among the first 10: {mine:.2f} by siglum.fit, {other:.2f} by faiss in RQ4x4")
    assert mine > 0.9

    served = to_faiss(CodedItems.of(retriever))  # what Siglum learnt, served by faiss
    _, found = served.search(retriever.encode_queries(siglum.features(fresh)), 10)
    print(f"the codes of siglum.fit in a faiss index: {(found == np.arange(200)[:, None]).any(1).mean():.2f}")

    items = from_faiss(index)  # what faiss learnt, searched and diagnosed by Siglum
    queries = torch.from_numpy(fresh)
    best = siglum.fused_beam_search(items.trie(), None, queries, codebooks=items.codebooks, beam=700, k=10)
    assert [list(one.position) for one in best] == theirs.tolist()
    codes = torch.from_numpy(items.codes_NL)
    print(siglum.diagnose_codes(codes, items.codebooks, queries, torch.from_numpy(xb), torch.arange(200)).verdict)


if __name__ == "__main__":
    main()
