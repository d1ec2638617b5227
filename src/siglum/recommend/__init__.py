"""Generative recommendation: a history of items is the query, and the item that comes next is the answer.

Quantiser, trie, search, measures, diagnosis and run folders are those of retrieval.

Example: `siglum.recommend.fit(sequences, item_vectors).next(["item-3", "item-17"], k=5)`.
"""

from __future__ import annotations

from siglum.data.sequence_files import read_sequences
from siglum.data.sequences import Sequences
from siglum.recommend.evaluation import evaluate
from siglum.recommend.fitting import fit
from siglum.recommend.recommender import Recommender
from siglum.recommenders import recommender

__all__ = ["Recommender", "Sequences", "evaluate", "fit", "read_sequences", "recommender"]
