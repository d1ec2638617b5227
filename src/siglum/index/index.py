"""The index: items in pool order and their codes as sorted, bit-packed rows.

Shapes: N items, L levels (the modality token, where there is one, is level 0), B bytes a packed row, W bytes a
position. A *position* is an item's place in the pool; a *row* is its place among the codes sorted in ascending order,
equal codes by position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from siglum import files
from siglum.given import as_array
from siglum.index import store
from siglum.index.ids import Ids
from siglum.index.pack import Layout, as_bytes, as_rows, chunks, insertion_points, narrow, sort_rows, widen
from siglum.index.strings import Strings
from siglum.index.trie import Allowed, Children, Leaves, Trie
from siglum.types import SiglumError, shown

if TYPE_CHECKING:
    from siglum.index.layered import Layered

PAGE = 1 << 12
"""Bytes of memory that are mapped at once."""
LAYERED = 1 << 16
"""Items from which on a change is laid over the index; a smaller index is sorted again in a few milliseconds."""


class Collisions(NamedTuple):
    """How many items have codes that another item has as well."""

    groups: int
    """Sets of two or more items with equal codes."""
    items: int
    """Items in those sets."""
    largest: int
    """Items in the largest set; 0 if there is none."""


class Index:
    """N items found by their codes; an index never changes, `add` and `remove` return another one.

    The state is canonical: the same pool in the same order gives the same bytes, however it came about.

    >>> index = Index.build(["cat", "dog", "cow"], np.array([[0, 7], [0, 2], [0, 7]]), (3, 8), tokenizer="f00d")
    >>> index.children(*index.root, depth=0).token.tolist(), index.collisions().items
    ([0], 2)
    >>> index.remove(["cat"]).codes_of(["cow"]).tolist()
    [[0, 7]]
    """

    def __init__(
        self,
        ids: Ids,
        packed_NB: np.ndarray,
        order_NW: np.ndarray,
        layout: Layout,
        tokenizer: str,
        fields: Strings | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        """Wrap arrays that are known to be consistent, or that `check` finds so on first use; use `build` or `load`."""
        self.ids = ids
        """Item ids in pool order, decoded on demand."""
        self.fields = Strings.empty(len(ids)) if fields is None else fields
        """What is kept to show of every item, in pool order, as `siglum.data.fields` writes it; often nothing."""
        self.layout = layout
        self.tokenizer = tokenizer
        """Fingerprint of the tokenizer that made the codes."""
        self._packed_NB, self._order_NW, self._check = packed_NB, order_NW, check

    @property
    def packed_NB(self) -> np.ndarray:
        """Sorted codes, each row with the number of codes it shares with the row before, uint8 (N, B), see `Layout`."""
        self._verify()
        return self._packed_NB

    @property
    def order_NW(self) -> np.ndarray:
        """Position of each row in as few bytes as hold it, uint8 (N, W), see `narrow`."""
        self._verify()
        return self._order_NW

    def _verify(self) -> None:
        """Refuse rows that are not those that were written, on their first use."""
        check = self._check
        if check is not None:
            check()
            self._check = None

    @cached_property
    def _trie(self) -> Trie:
        return Trie(self.layout, self.packed_NB, self.order_NW)

    @classmethod
    def build(
        cls,
        ids: Sequence[str],
        codes_NL: np.ndarray,
        sizes: Sequence[int],
        tokenizer: str,
        fields: Sequence[str] = (),
    ) -> Index:
        """Return an index of items with these codes, refusing an empty pool, repeated ids and codes out of range."""
        names = Ids.of(ids)
        if not len(names):
            raise SiglumError("an index needs at least one item, but the pool is empty.")
        if not isinstance(tokenizer, str):
            raise SiglumError(f"the tokenizer of an index is named by its fingerprint, not {shown(tokenizer)}.")
        layout = Layout.of(sizes)
        packed_NB, order = sorted_rows(names, codes_NL, layout)
        layout.link(packed_NB)
        return cls(names, packed_NB, narrow(order), layout, tokenizer, fields_of(names, fields))

    def add(self, ids: Sequence[str], codes_NL: np.ndarray, fields: Sequence[str] = ()) -> Index:
        """Return an index with these items at the end of the pool; that of a large pool is laid over this one."""
        if len(self) >= LAYERED:
            return self.layer().add(ids, codes_NL, fields)
        new_ids = Ids.of(ids)
        new_NB, new_order = sorted_rows(new_ids, codes_NL, self.layout)
        return self.merged(new_ids, new_NB, new_order, self.insertion_points(new_NB), fields_of(new_ids, fields))

    def remove(self, ids: Iterable[str]) -> Index:
        """Return an index without these items, the pool closing up behind them."""
        if len(self) >= LAYERED:
            return self.layer().remove(ids)
        keep = np.ones(len(self), bool)
        keep[self.ids.positions(ids)] = False
        if not keep.any():
            raise SiglumError(f"removing all {len(self)} items would leave an empty index; keep at least one.")
        return self.kept(keep)

    def layer(self) -> Layered:
        """Return this index with an empty layer of changes over it, which shares all that is here."""
        from siglum.index.layered import Layered  # it is an index of indexes, and imports this one

        return Layered.over(self)

    def merged(self, ids: Ids, new_NB: np.ndarray, order: np.ndarray, at: np.ndarray, fields: Strings) -> Index:
        """Return an index with sorted rows inserted before the rows `at`, their items at the end of the pool."""
        names, both = self.ids.joined(ids), self.fields.joined(fields)
        packed_NB = as_rows(np.insert(as_bytes(self.packed_NB), at, as_bytes(new_NB)))
        positions = np.insert(widen(self.order_NW), at, order + len(self))
        added = at + np.arange(len(at))
        return self._linked(names, both, packed_NB, positions, np.concatenate([added, added + 1]))

    def kept(self, keep: np.ndarray) -> Index:
        """Return an index of the items where the mask over positions is true."""
        order = widen(self.order_NW)
        stays = keep[order]
        packed_NB = as_rows(as_bytes(self.packed_NB)[stays])
        order = (np.cumsum(keep, dtype=np.uint32) - np.uint32(1))[order[stays]]
        gone = np.flatnonzero(~stays)
        left = self.ids.kept(keep), self.fields.kept(keep)
        return self._linked(*left, packed_NB, order, gone - np.arange(len(gone)))

    def _linked(self, ids: Ids, fields: Strings, packed_NB: np.ndarray, order: np.ndarray, stale: np.ndarray) -> Index:
        """Return an index of sorted rows, of which the stale ones follow another row than they did."""
        packed_NB[:1, -1] &= 255 ^ self.layout.tail
        self.layout.link(packed_NB, np.unique(stale[(stale > 0) & (stale < len(ids))]))
        return Index(ids, packed_NB, narrow(order), self.layout, self.tokenizer, fields)

    def insertion_points(self, new_NB: np.ndarray) -> np.ndarray:
        """Return the row before which each new packed row goes, after any with equal codes, int64 (M,)."""
        return insertion_points(self.packed_NB, new_NB, self.layout.tail)

    @property
    def flat(self) -> Index:
        """The same index in one piece."""
        return self

    @property
    def base(self) -> Index:
        """What lies below all layers."""
        return self

    def warm(self, like: Index | None = None, rest: Callable[[], None] | None = None) -> None:
        """Do now what first uses would wait for: check the files, list where items are, and branches as `like` has.

        `rest` is called between pieces of the work.
        """
        for array in (self.ids.lookup, self.packed_NB):  # one look a page: what is mapped comes page by page
            array.reshape(-1)[:: PAGE // array.itemsize].max(initial=0)
        self._trie.list_branches([] if like is None else like.listed(), rest)
        if "_row_of_position" not in vars(self):
            self._row_of_position = self._rows_by_position(rest)

    def listed(self) -> list[int]:
        """Return the depths whose branches searches have asked for."""
        return self._trie.listed

    def save(self, folder: Path) -> str:
        """Write the index into a folder and return its fingerprint."""
        files.begin_stage(folder)
        store.write_arrays(folder / store.ROWS_FILE, {"packed": self.packed_NB, "order": self.order_NW})
        names = {"id_bytes": self.ids.blob, "id_offsets": self.ids.offsets, "id_lookup": self.ids.lookup}
        store.write_arrays(folder / store.IDS_FILE, names)
        store.write_fields(folder / store.FIELDS_FILE, self.fields)
        inputs = {"tokenizer": self.tokenizer}
        facts = {"layout": store.LAYOUT, "items": len(self), "sizes": list(self.sizes)}
        return files.finish_stage(folder, stage=store.STAGE, inputs=inputs, **facts)

    @classmethod
    def load(cls, folder: Path, tokenizer: str | None = None) -> Index:
        """Map a saved index into memory, refusing one made with another tokenizer than the one given."""
        wanted = {} if tokenizer is None else {"tokenizer": tokenizer}
        lazily = (store.ROWS_FILE, store.IDS_FILE, store.FIELDS_FILE)
        record = files.open_stage(folder, store.STAGE, lazily=lazily, **wanted)
        layout, count = _shape_of(folder, record)
        packed_NB, order_NW = store.map_rows(folder / store.ROWS_FILE, layout, count)
        checks = record.get("checks", {})
        return cls(
            ids=store.map_ids(folder / store.IDS_FILE, count, checks.get(store.IDS_FILE)),
            packed_NB=packed_NB,
            order_NW=order_NW,
            layout=layout,
            tokenizer=record["inputs"].get("tokenizer", ""),
            fields=store.map_fields(folder, count, record),
            check=store.row_check(folder, record),
        )

    def __len__(self) -> int:
        """Return the number N of items."""
        return len(self.packed_NB)

    def __repr__(self) -> str:
        """Return the number of items, the sizes and the tokenizer."""
        return f"Index({len(self)} items, sizes={self.sizes}, tokenizer={self.tokenizer!r})"

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of codes of every level."""
        return self.layout.sizes

    @property
    def levels(self) -> int:
        """Number L of codes an item, the modality token counted."""
        return self.layout.levels

    @property
    def nbytes(self) -> int:
        """Bytes of all that is stored beside the ids: codes, trie and order."""
        return self.packed_NB.nbytes + self.order_NW.nbytes

    @cached_property
    def shared(self) -> np.ndarray:
        """Number of leading codes a row shares with the row before, uint8 (N,); L means equal codes; made on use."""
        shared: np.ndarray = self.packed_NB[:, -1] & np.uint8(self.layout.tail)
        return shared

    @cached_property
    def order(self) -> np.ndarray:
        """Position of each row, uint32 (N,); made on use, while `leaves` reads single positions."""
        return widen(self.order_NW)

    def codes(self, rows: np.ndarray | None = None) -> np.ndarray:
        """Return the codes of sorted rows (all of them by default), int32 (n, L)."""
        return self.layout.unpack(self.packed_NB, rows)

    def column(self, level: int, rows: np.ndarray) -> np.ndarray:
        """Return the codes of one level for sorted rows, int32 (n,)."""
        return self.layout.column(self.packed_NB, level, rows)

    def positions_at(self, rows: np.ndarray) -> np.ndarray:
        """Return the positions in the pool of sorted rows, int64 (n,)."""
        return widen(self.order_NW, rows).astype(np.int64)

    def positions(self, ids: Iterable[str]) -> np.ndarray:
        """Return the positions of items in the pool, refusing an unknown id, int64."""
        return self.ids.positions(ids)

    def rows(self, ids: Iterable[str]) -> np.ndarray:
        """Return the sorted rows of items, refusing an unknown id, int64."""
        return self.rows_of(self.positions(ids))

    def rows_of(self, positions: np.ndarray) -> np.ndarray:
        """Return the sorted rows of positions, int64 (n,)."""
        rows: np.ndarray = self._row_of_position[positions]
        return rows.astype(np.int64)

    def codes_of(self, ids: Iterable[str]) -> np.ndarray:
        """Return the codes of items, refusing an unknown id, int32 (n, L)."""
        return self.codes(self.rows(ids))

    def fields_of(self, ids: Iterable[str]) -> list[str]:
        """Return what is kept to show of items, refusing an unknown id."""
        return self.fields.take(self.positions(ids))

    @cached_property
    def _row_of_position(self) -> np.ndarray:
        return self._rows_by_position()

    def _rows_by_position(self, rest: Callable[[], None] | None = None) -> np.ndarray:
        """Return the sorted row of every position, uint32 (N,)."""
        rows, order_NW = np.empty(len(self), np.uint32), self.order_NW
        for part in chunks(len(self), rest):
            here = np.arange(part.start, part.stop)
            rows[widen(order_NW, here)] = here
        return rows

    def collisions(self) -> Collisions:
        """Count the items that share all their codes with another item."""
        starts = np.append(np.flatnonzero(self.shared < self.levels), len(self))
        counts = np.diff(starts)
        counts = counts[counts > 1]
        return Collisions(len(counts), int(counts.sum()), int(counts.max(initial=0)))

    def rows_mask(self, within: Iterable[str] | np.ndarray) -> np.ndarray:
        """Return which sorted rows belong to the ids, or to the boolean mask over positions, bool (N,)."""
        if isinstance(within, np.ndarray) and within.dtype == bool:
            if within.shape != (len(self),):
                raise SiglumError(f"the mask has shape {within.shape}, but the index has {len(self)} items.")
            mask = within
        else:
            mask = np.zeros(len(self), bool)
            mask[self.positions(within)] = True
        return self._mask_rows(mask)

    def _mask_rows(self, mask: np.ndarray) -> np.ndarray:
        """Return a mask over positions as one over rows."""
        rows: np.ndarray = mask[widen(self.order_NW)]
        return rows

    def allow(self, within: Iterable[str] | np.ndarray) -> Allowed:
        """Return the filter of `rows_mask` in the form `children` and `leaves` take; make it once a search."""
        return Allowed.of(self.rows_mask(within))

    @property
    def root(self) -> tuple[np.ndarray, np.ndarray]:
        """The node at depth 0, as the arrays (lo, hi) of one range."""
        return np.zeros(1, np.int64), np.full(1, len(self))

    def children(self, lo: np.ndarray, hi: np.ndarray, depth: int, allowed: Allowed | None = None) -> Children:
        """Return the children of many nodes [lo, hi) at one depth, leaving out those without an allowed item."""
        return self._trie.children(lo, hi, depth, allowed)

    def leaves(self, lo: np.ndarray, hi: np.ndarray, allowed: Allowed | None = None) -> Leaves:
        """Return the (allowed) items under nodes [lo, hi) of any depth; under full depth they come in pool order."""
        return self._trie.leaves(lo, hi, allowed)


def _shape_of(folder: Path, record: Mapping[str, Any]) -> tuple[Layout, int]:
    """Return layout and number of items from a record, refusing arrays of another version."""
    sizes, items, version = record.get("sizes"), record.get("items"), record.get("layout", 1)
    if version != store.LAYOUT:
        told = f"{folder} has layout {shown(version)}, but this version reads layout {store.LAYOUT}"
        raise SiglumError(f"{told}; make the index again.")
    numbers: list[Any] = [*sizes, items] if isinstance(sizes, list) else [None]
    if not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise SiglumError(f"the record of {folder} does not tell what the index holds; make the index again.")
    *shape, count = numbers
    return Layout(tuple(shape)), count


def fields_of(ids: Ids, fields: Sequence[str]) -> Strings:
    """Return what is kept of new items; where nothing is given, nothing of each."""
    if len(fields) not in (0, len(ids)):
        raise SiglumError(f"{len(ids)} items were given with the fields of {len(fields)}.")
    if isinstance(fields, Strings):
        return fields
    return Strings.of(fields) if len(fields) else Strings.empty(len(ids))


def sorted_rows(ids: Ids, codes_NL: np.ndarray, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """Return checked codes as sorted packed rows, with the position of each row."""
    codes_NL = as_array("codes", codes_NL)
    _check_codes(ids, codes_NL, layout)
    packed_NB = layout.pack(codes_NL)
    order = sort_rows(packed_NB)
    return np.take(packed_NB, order, 0), order  # several times faster than packed_NB[order]


def _check_codes(ids: Ids, codes_NL: np.ndarray, layout: Layout) -> None:
    if codes_NL.shape != (len(ids), layout.levels):
        raise SiglumError(
            f"{len(ids)} items with {layout.levels} levels need codes of shape ({len(ids)}, {layout.levels}), "
            f"but they have shape {codes_NL.shape}."
        )
    if codes_NL.dtype.kind not in "iu":
        raise SiglumError(f"codes must be whole numbers, but they are {codes_NL.dtype}.")
    # A negative code, read as an unsigned number, is too large as well.
    top_L = codes_NL.view(codes_NL.dtype.str.replace("i", "u")).max(0, initial=0)
    if (top_L >= np.array(layout.sizes)).any():
        row, level = np.argwhere((codes_NL < 0) | (codes_NL >= np.array(layout.sizes)))[0]
        raise SiglumError(
            f"item {shown(ids[int(row)])} has code {codes_NL[row, level]} at level {level}, "
            f"but codes there go from 0 to {layout.sizes[level] - 1}."
        )
