"""The rest of many paths at once: all leaves under the live prefixes, scored in one teacher-forced pass, then pruned.

Nothing is lost by scoring leaves that a beam would have pruned on the way: `replay` prunes the same prefixes level by
level from the stored scores. Where no more leaves are left than the beam is wide, nothing would be pruned.
Shapes: P paths (distinct leaves, by query and code order), L levels, T = L - s levels from level s on, U distinct
positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from siglum.search.beam import best_per_query


@dataclass(slots=True)
class Paths:
    """Leaves under live prefixes of length `level`."""

    level: int
    query: np.ndarray
    """Query of each path."""
    parent: np.ndarray
    """Live prefix of each path, as a row of the walk at this level."""
    codes_PL: np.ndarray
    """All codes, from level 0."""
    lo: np.ndarray
    """First sorted row of the leaf."""
    hi: np.ndarray
    """End of the leaf's rows."""

    def __len__(self) -> int:
        return len(self.query)

    def part(self, keep: np.ndarray | slice) -> Paths:
        """Return some of the paths."""
        return Paths(self.level, self.query[keep], self.parent[keep], self.codes_PL[keep], self.lo[keep], self.hi[keep])

    def shared(self) -> np.ndarray:
        """Return how many leading codes each path shares with the path before, -1 with another prefix's path (P,)."""
        same_PL = self.codes_PL[1:] == self.codes_PL[:-1]
        shared = np.full(len(self), -1)
        shared[1:] = np.where(self.parent[1:] == self.parent[:-1], np.cumprod(same_PL, 1).sum(1), -1)
        return shared

    def best_below(self, gain_P: np.ndarray, levels: int) -> np.ndarray:
        """Return the highest gain of the leaves below the prefixes that end at each of so many levels (P, T)."""
        shared_P, found = self.shared(), np.empty((len(self), levels))
        for column in range(levels):
            heads = np.flatnonzero(shared_P <= self.level + column)
            best = np.maximum.reduceat(gain_P, heads)
            found[:, column] = np.repeat(best, np.diff(np.append(heads, len(self))))
        return found

    def last_branch(self) -> np.ndarray:
        """Return the deepest level at which each path parts from another one of its prefix, -1 where none does (P,)."""
        shared_P = self.shared()
        last: np.ndarray = np.maximum(shared_P, np.append(shared_P[1:], -1))
        return last

    def positions(self, *, branching_only: bool) -> np.ndarray:
        """Return how many positions a plan runs for each path, those it shares with the path before left out (P,)."""
        last_P = self.last_branch() if branching_only else self.codes_PL.shape[1] - 1
        counts: np.ndarray = np.maximum(last_P - np.maximum(self.shared(), self.level - 1), 0)
        return counts


@dataclass(slots=True)
class PathPlan:
    """Which positions of which paths are run; position j has read j codes and says the code of level j."""

    path_U: np.ndarray
    """Path of each distinct position, ascending."""
    level_U: np.ndarray
    """Number of codes read, ascending within a path."""
    place_PT: np.ndarray
    """Row of every position of every path; 0 where nothing is run."""
    wanted_PT: np.ndarray
    """Whether the code that follows is scored."""

    @classmethod
    def of(cls, paths: Paths, *, branching_only: bool) -> PathPlan:
        """Plan every position once, or with `branching_only` those down to the last branch of each path."""
        levels, start = paths.codes_PL.shape[1], paths.level
        shared_P = paths.shared()
        after_P = np.append(shared_P[1:], -1)
        last_P = paths.last_branch() if branching_only else np.full(len(paths), levels - 1)
        level_T = np.arange(start, max(int(last_P.max(initial=start - 1)) + 1, start))
        run_PT = level_T <= last_P[:, None]
        fresh_PT = run_PT & (level_T > shared_P[:, None])
        path_U, place_U = np.nonzero(fresh_PT)
        number_PT = np.zeros(run_PT.shape, np.int64)
        number_PT[path_U, place_U] = np.arange(len(path_U))
        # Of a position that several paths share, the first of them has the row.
        place_PT = np.maximum.accumulate(np.where(fresh_PT, number_PT, 0), axis=0) if len(path_U) else number_PT
        wanted_PT = run_PT
        if branching_only:
            wanted_PT = run_PT & branches(shared_P, after_P, level_T)
        return cls(path_U, level_T[place_U], np.where(run_PT, place_PT, 0), wanted_PT)


def branches(shared_P: np.ndarray, after_P: np.ndarray, level_T: np.ndarray) -> np.ndarray:
    """Return whether the prefix of a path at each level has several children among the paths (P, T).

    >>> branches(np.array([-1, 2, 2]), np.array([2, 2, -1]), np.array([1, 2])).tolist()
    [[False, True], [False, True], [False, True]]
    """
    found_PT = np.zeros((len(shared_P), len(level_T)), bool)
    for column, level in enumerate(level_T):
        # Paths that share the prefix are a run; it branches where two neighbours part exactly here.
        run_P = np.cumsum(shared_P < level)
        parts = np.zeros(run_P[-1] + 1, bool)
        parts[run_P[shared_P == level]] = True
        found_PT[:, column] = parts[run_P]
    return found_PT


def replay(paths: Paths, path_score_PT: np.ndarray, beam: int, queries: int) -> np.ndarray:
    """Return which paths a beam search keeps to the end, given the score of every prefix from `level` on, bool (P,)."""
    shared_P = paths.shared()
    alive = np.ones(len(paths), bool)
    for column in range(path_score_PT.shape[1]):
        if np.bincount(paths.query[alive], minlength=queries).max(initial=0) <= beam:
            break
        head_P = shared_P <= paths.level + column
        group_P = np.cumsum(head_P) - 1
        heads = np.flatnonzero(head_P & alive)
        keep = best_per_query(paths.query[heads], path_score_PT[heads, column], beam, queries)
        kept = np.zeros(len(paths), bool)
        kept[group_P[heads[keep]]] = True
        alive &= kept[group_P]
    return alive
