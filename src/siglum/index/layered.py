"""A layer of changes over an index: items added and items gone, and yet the rows and nodes of one sorted index.

An index of ten million items is not sorted again for a thousand new ones. The layer keeps the new rows sorted among
themselves, with the row of the index below before which each belongs, and the rows below that are gone. From these two
short lists the number that a row would have in an index built anew follows by binary search, both ways; so nodes stay
ranges of rows, `children` is a union of the children below and those of the layer, and whatever searches an index
searches a layered one with the same result. Layers can lie over layers.
Shapes: N items, M of them in the layer, D gone from below, L levels, B bytes a packed row. A *live* rank counts the
rows below that are not gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from siglum.given import listed
from siglum.index.ids import Ids, LayeredIds
from siglum.index.index import Index, fields_of, sorted_rows
from siglum.index.pack import chunks, insertion_points, narrow
from siglum.index.ragged import spread
from siglum.index.strings import LayeredStrings
from siglum.index.trie import Allowed, Children, Leaves
from siglum.types import SiglumError


class Layered(Index):
    """An index below, without the rows that are gone and with the rows of the layer.

    >>> index = Index.build(["cat", "dog"], np.array([[0, 7], [0, 2]]), (3, 8), tokenizer="f00d")
    >>> index.layer().add(["cow"], np.array([[0, 4]])).remove(["dog"]).codes().tolist()
    [[0, 4], [0, 7]]
    """

    def __init__(self, below: Index, gone: np.ndarray, fresh: Index, at: np.ndarray) -> None:
        """Lay `fresh` over `below`: its row i before the row at[i], and without the rows `gone` (both ascending)."""
        self.below, self.gone, self.fresh, self.at = below, gone, fresh, at
        self.layout, self.tokenizer = below.layout, below.tokenizer
        self._live = len(below) - len(gone)
        self._skip = gone - np.arange(len(gone))
        """Live rank at which each gone row lay."""
        self._before = at - np.searchsorted(gone, at)
        """Live rank before which each row of the layer goes."""
        self._place = self._before + np.arange(len(at))
        """Row of each row of the layer."""
        gone_at = np.sort(below.positions_at(gone))
        self._names = LayeredIds(below.ids, gone_at, fresh.ids)
        self.ids = self._names
        self.fields = LayeredStrings(below.fields, gone_at, fresh.fields)

    @classmethod
    def over(cls, below: Index) -> Layered:
        """Return an index with an empty layer."""
        nothing, layout = np.zeros(0, np.int64), below.layout
        fresh = Index(
            ids=Ids.of([]),
            packed_NB=np.zeros((0, layout.row_bytes), np.uint8),
            order_NW=narrow(np.zeros(0, np.uint32)),
            layout=layout,
            tokenizer=below.tokenizer,
        )
        return cls(below, nothing, fresh, nothing)

    @property
    def changes(self) -> int:
        """Items in the layer and items gone from below it."""
        return len(self.at) + len(self.gone)

    def add(self, ids: Sequence[str], codes_NL: np.ndarray, fields: Sequence[str] = ()) -> Layered:
        """Return an index with these items at the end of the pool."""
        new_ids = Ids.of(ids)
        self.ids.refuse_known(new_ids)
        new_NB, order = sorted_rows(new_ids, codes_NL, self.layout)
        where = insertion_points(self.fresh.packed_NB, new_NB, self.layout.tail)
        at = np.insert(self.at, where, self.below.insertion_points(new_NB))
        fresh = self.fresh.merged(new_ids, new_NB, order, where, fields_of(new_ids, fields))
        return Layered(self.below, self.gone, fresh, at)

    def remove(self, ids: Iterable[str]) -> Layered:
        """Return an index without these items, the pool closing up behind them."""
        return self.changed(listed(ids), (), np.zeros((0, self.levels), np.int64))

    def changed(
        self, gone: Sequence[str], ids: Sequence[str], codes_NL: np.ndarray, fields: Sequence[str] = ()
    ) -> Layered:
        """Return an index without the items `gone`, maybe all there were, and then with new ones."""
        left = self._without(np.unique(self.ids.positions(gone))) if len(gone) else self
        if not len(left) and not len(ids):
            raise SiglumError(f"removing all {len(self)} items would leave an empty index; keep at least one.")
        return left.add(ids, codes_NL, fields) if len(ids) else left

    def _without(self, places: np.ndarray) -> Layered:
        """Return an index without the items at these positions (ascending)."""
        split = int(np.searchsorted(places, self._live))
        keep = np.ones(len(self.fresh), bool)
        keep[places[split:] - self._live] = False
        rows = self.below.rows_of(self._names.below_positions(places[:split]))
        stays = keep[self.fresh.order]
        fresh = self.fresh if keep.all() else self.fresh.kept(keep)
        return Layered(self.below, np.union1d(self.gone, rows).astype(np.int64), fresh, self.at[stays])

    def rebased(self, below: Index) -> Layered:
        """Return the same layer over another index of the same rows, such as one that was written in one piece."""
        if len(below) != len(self.below):
            raise SiglumError(f"a layer over {len(self.below)} rows does not fit over {len(below)}.")
        return Layered(below, self.gone, self.fresh, self.at)

    @cached_property
    def flat(self) -> Index:
        """The same index in one piece, made on use."""
        keep = np.ones(len(self.below), bool)
        keep[self.below.positions_at(self.gone)] = False
        left = self.below.flat if keep.all() else self.below.flat.kept(keep)
        fresh = self.fresh
        return left.merged(fresh.ids, fresh.packed_NB, fresh.order.astype(np.int64), self._before, fresh.fields)

    @property
    def base(self) -> Index:
        """What lies below all layers."""
        return self.below.base

    def warm(self, like: Index | None = None, rest: Callable[[], None] | None = None) -> None:
        """Do now what first uses would wait for, below."""
        self.below.warm(like, rest)
        self.fresh.warm()

    def listed(self) -> list[int]:
        """Return the depths whose branches searches have asked for."""
        return self.below.listed()

    @property
    def packed_NB(self) -> np.ndarray:
        """Sorted codes of the index in one piece."""
        return self.flat.packed_NB

    @property
    def order_NW(self) -> np.ndarray:
        """Positions of the index in one piece."""
        return self.flat.order_NW

    def save(self, folder: Path) -> str:
        """Write the index in one piece."""
        return self.flat.save(folder)

    def __len__(self) -> int:
        return self._live + len(self.at)

    @property
    def nbytes(self) -> int:
        """Bytes of all that is stored beside the ids."""
        return self.below.nbytes + self.fresh.nbytes + self.at.nbytes + self.gone.nbytes

    def insertion_points(self, new_NB: np.ndarray) -> np.ndarray:
        """Return the row before which each new packed row goes, after any with equal codes, int64 (M,)."""
        below = self.below.insertion_points(new_NB)
        live = below - np.searchsorted(self.gone, below)
        own: np.ndarray = insertion_points(self.fresh.packed_NB, new_NB, self.layout.tail)
        return own + live

    def _find(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return which rows are the layer's own, and the rows there and below (those of the others mean nothing)."""
        rows = np.asarray(rows, np.int64)
        own = np.searchsorted(self._place, rows)
        inside = np.minimum(own, len(self._place) - 1)
        is_own = self._place[inside] == rows if len(self._place) else np.zeros(len(rows), bool)
        return is_own, own, self._row_below(rows - own)

    def _row_below(self, live: np.ndarray) -> np.ndarray:
        """Return the rows below of live ranks."""
        if not len(self.gone):
            return live
        rows: np.ndarray = live + np.searchsorted(self._skip, live, "right")
        return rows

    def _pick(self, rows: np.ndarray, own: np.ndarray, below: np.ndarray, is_own: np.ndarray) -> np.ndarray:
        """Return an array a row, put together from those of the layer's rows and of the rows below."""
        picked = np.empty((len(rows), *below.shape[1:]), below.dtype)
        picked[is_own], picked[~is_own] = own, below
        return picked

    def codes(self, rows: np.ndarray | None = None) -> np.ndarray:
        """Return the codes of sorted rows (all of them by default), int32 (n, L)."""
        rows = np.arange(len(self)) if rows is None else rows
        is_own, own, below = self._find(rows)
        if not is_own.any():
            return self.below.codes(below)
        return self._pick(rows, self.fresh.codes(own[is_own]), self.below.codes(below[~is_own]), is_own)

    def column(self, level: int, rows: np.ndarray) -> np.ndarray:
        """Return the codes of one level for sorted rows, int32 (n,)."""
        if not self.changes:
            return self.below.column(level, rows)
        is_own, own, below = self._find(rows)
        if not is_own.any():
            return self.below.column(level, below)
        mine, theirs = self.fresh.column(level, own[is_own]), self.below.column(level, below[~is_own])
        return self._pick(rows, mine, theirs, is_own)

    def positions_at(self, rows: np.ndarray) -> np.ndarray:
        """Return the positions in the pool of sorted rows, int64 (n,)."""
        if not self.changes:
            return self.below.positions_at(rows)
        is_own, own, below = self._find(rows)
        place = self.below.positions_at(below[~is_own])
        place = place - np.searchsorted(self._names.gone, place)
        return self._pick(rows, self._live + self.fresh.positions_at(own[is_own]), place, is_own)

    def rows_of(self, positions: np.ndarray) -> np.ndarray:
        """Return the sorted rows of positions, int64 (n,)."""
        positions = np.asarray(positions, np.int64)
        is_own = positions >= self._live
        below = self.below.rows_of(self._names.below_positions(positions[~is_own]))
        live = below - np.searchsorted(self.gone, below)
        row = live + np.searchsorted(self._before, live, "right")
        return self._pick(positions, self._place[self.fresh.rows_of(positions[is_own] - self._live)], row, is_own)

    @cached_property
    def order(self) -> np.ndarray:  # type: ignore[override]
        """Position of each row, uint32 (N,)."""
        parts = [self.positions_at(np.arange(part.start, part.stop)) for part in chunks(len(self))]
        return np.concatenate(parts).astype(np.uint32)

    def _mask_rows(self, mask: np.ndarray) -> np.ndarray:
        rows: np.ndarray = mask[self.order]
        return rows

    def children(self, lo: np.ndarray, hi: np.ndarray, depth: int, allowed: Allowed | None = None) -> Children:
        """Return the children of many nodes [lo, hi) at one depth, leaving out those without an allowed item."""
        if not self.changes:
            return self.below.children(lo, hi, depth, allowed)
        lo, hi = np.asarray(lo, np.int64), np.asarray(hi, np.int64)
        if (hi - lo == 1).all() and 0 <= depth < self.levels:  # single items: a few levels down nearly all nodes are
            found = Children(np.arange(len(lo)), self.column(depth, lo), lo, hi)
            return found if allowed is None else _allowed(found, allowed)
        first, last = np.searchsorted(self._place, lo), np.searchsorted(self._place, hi)
        live = hi - last - (lo - first)
        begin, end = self._row_below(lo - first), self._row_below(hi - last - 1) + 1
        if not (last > first).any() and (end - begin == live).all():  # nothing has changed under any of the nodes
            kids = self.below.children(begin, end, depth)
            moved = (lo - begin)[kids.parent]
            found = Children(kids.parent, kids.token, kids.lo + moved, kids.hi + moved)
        else:
            found = self._union(lo, (begin, end, live > 0), (first, last, last > first), depth)
        return found if allowed is None else _allowed(found, allowed)

    def _union(
        self, lo: np.ndarray, below: tuple[np.ndarray, ...], own: tuple[np.ndarray, ...], depth: int
    ) -> Children:
        """Return the children of nodes that have rows in both indexes, from (begin, end, has any) in each."""
        nodes = np.flatnonzero(below[2])
        parent, token, size = self._sizes_below(nodes, below[0][nodes], below[1][nodes], depth)
        nodes = np.flatnonzero(own[2])
        if len(nodes):
            kids = self.fresh.children(own[0][nodes], own[1][nodes], depth)
            parent, token, size = self._with_own((parent, token, size), nodes[kids.parent], kids, depth)
        # The children of a node lie one after the other, from the node's first row on.
        end, counts = np.cumsum(size), np.bincount(parent, minlength=len(lo))
        some = np.flatnonzero(counts)
        child_lo = end - size
        child_lo += np.repeat(lo[some] - child_lo[(np.cumsum(counts) - counts)[some]], counts[some])
        return Children(parent, token, child_lo, child_lo + size)

    def _sizes_below(
        self, nodes: np.ndarray, begin: np.ndarray, end: np.ndarray, depth: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the children below of nodes [begin, end): the node, the token, and how many rows are left."""
        kids = self.below.children(begin, end, depth)
        size = kids.hi - kids.lo
        first = np.searchsorted(self.gone, begin)
        counts = np.searchsorted(self.gone, end) - first
        is_all = len(nodes) > 0 and len(nodes) == nodes[-1] + 1
        parent = kids.parent if is_all else nodes[kids.parent]
        if not counts.any():
            return parent, kids.token, size
        if counts.sum() < len(kids.lo):  # few gone rows are looked up among the children, many the other way round
            start = np.arange(len(nodes)) * len(self.below)
            gone = self.gone[spread(first, counts)] + np.repeat(start, counts)
            place = np.searchsorted(start[kids.parent] + kids.lo, gone, "right") - 1
            size -= np.bincount(place, minlength=len(size))
        else:
            size += np.searchsorted(self.gone, kids.lo) - np.searchsorted(self.gone, kids.hi)
        live = size > 0  # all items below a child may be gone
        return parent[live], kids.token[live], size[live]

    def _with_own(
        self, below: tuple[np.ndarray, ...], parent: np.ndarray, kids: Children, depth: int
    ) -> tuple[np.ndarray, ...]:
        """Return children as (node, token, size), those of the layer counted in or put between."""
        size, width = kids.hi - kids.lo, self.sizes[depth]
        theirs, own = below[0] * width + below[1], parent * width + kids.token
        at = np.searchsorted(theirs, own)
        known = np.append(theirs, -1)[at] == own
        below[2][at[known]] += size[known]
        new = ~known
        if not new.any():
            return below
        columns = zip(below, (parent, kids.token, size), strict=True)
        return tuple(np.insert(column, at[new], values[new]) for column, values in columns)

    def leaves(self, lo: np.ndarray, hi: np.ndarray, allowed: Allowed | None = None) -> Leaves:
        """Return the (allowed) items under nodes [lo, hi) of any depth; under full depth they come in pool order."""
        return Leaves.of(lo, hi, allowed, self.positions_at)


def _allowed(kids: Children, allowed: Allowed) -> Children:
    """Return the children with an allowed row."""
    keep = allowed.count(kids.lo, kids.hi) > 0
    return Children(*(column[keep] for column in kids))
