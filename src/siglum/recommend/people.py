"""Whom a run's recommendations are measured on: users, what each has seen, and how often items were seen in training.

Shapes: M histories of a collection, Q of them asked, N items.
"""

from __future__ import annotations

import numpy as np

from siglum.recommend.measures import UsersAsked
from siglum.recommend.validation import targets_of
from siglum.types import Histories, SiglumError, Task, Vectors


def users_asked(vectors: Vectors, task: Task, codes_NT: np.ndarray | None = None) -> UsersAsked:
    """Return the users of a task."""
    histories = histories_of(vectors)
    return UsersAsked(targets_of(task), seen_items(histories, task.query_rows), training_counts(vectors), codes_NT)


def histories_of(vectors: Vectors) -> Histories:
    """Return what the queries are, refusing those that are no histories."""
    if vectors.histories is None:
        raise SiglumError("the queries of this run are no histories: it is no recommender.")
    return vectors.histories


def last_items(histories: Histories) -> np.ndarray:
    """Return the last item of every history, -1 where it has none (M,)."""
    place_M = np.maximum((histories.row_MH >= 0).sum(1) - 1, 0)
    found: np.ndarray = histories.row_MH[np.arange(len(place_M)), place_M].astype(np.int64)
    return found


def seen_items(histories: Histories, rows: np.ndarray) -> list[np.ndarray]:
    """Return all items that came before each of these histories' answers, though a history holds the last of them.

    The item before last of a user is the last item of the user's history before, and so on to the first.
    """
    order = np.lexsort((histories.seen_M, histories.user_M))
    user, seen, last = histories.user_M[order], histories.seen_M[order], last_items(histories)[order]
    found = []
    for row in np.asarray(rows).tolist():
        first, end = np.searchsorted(user, (histories.user_M[row], histories.user_M[row] + 1))
        earlier = last[first:end][seen[first:end] <= histories.seen_M[row]]
        own = histories.row_MH[row]
        found.append(np.unique(np.concatenate([earlier[earlier >= 0], own[own >= 0]])))
    return found


def training_counts(vectors: Vectors) -> np.ndarray:
    """Return how many events of training each item has (N,).

    Every event of a user but the last is the last item of the history before the next one.
    """
    histories, items = histories_of(vectors), len(vectors.items)
    query = vectors.pair_query
    last = last_items(histories)[query]
    count_N = np.bincount(last[last >= 0], minlength=items)
    order = np.lexsort((histories.seen_M[query], histories.user_M[query]))
    user = histories.user_M[query][order]
    ends = np.append(user[1:] != user[:-1], True)[: len(user)]
    counted: np.ndarray = count_N + np.bincount(vectors.pair_item[order][ends], minlength=items)
    return counted
