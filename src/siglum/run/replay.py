"""What a log makes of an index: all its records at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from siglum.index import Index, Layered
from siglum.run.journal import Record
from siglum.types import SiglumError


def replay(index: Index, vectors_ND: np.ndarray | None, records: Sequence[Record]) -> tuple[Layered, np.ndarray | None]:
    """Return the index after these records, as one layer, and its kept vectors in pool order."""
    gone, fresh = _outcome(index, records)
    layer = index if isinstance(index, Layered) else index.layer()
    keep = np.ones(len(index), bool)
    keep[index.positions(gone)] = False
    names = list(fresh)
    packed_MB = np.zeros((0, index.layout.row_bytes), np.uint8)
    if fresh:
        packed_MB = np.stack([record.packed_MB[place] for record, place in fresh.values()])
    fields = [record.fields[place] if record.fields else "" for record, place in fresh.values()]
    layer = layer.changed(gone, names, index.layout.unpack(packed_MB), fields if any(fields) else ())
    if vectors_ND is None:
        return layer, None
    own = [record.vectors_MD[place] for record, place in fresh.values()]
    if any(len(row) != vectors_ND.shape[1] for row in own):
        raise SiglumError("the log does not keep the vectors that the index keeps; put it back.")
    return layer, np.concatenate([vectors_ND[keep], *([np.stack(own)] if own else [])])


def _outcome(index: Index, records: Sequence[Record]) -> tuple[list[str], dict[str, tuple[Record, int]]]:
    """Return the ids of the index that are gone in the end, and where each item stands that is new in the end."""
    names = list({name: None for record in records for name in (*record.gone, *record.ids)})
    known = set(index.ids.known(names))
    gone: dict[str, None] = {}
    fresh: dict[str, tuple[Record, int]] = {}
    for record in records:
        for name in record.gone:
            if name in fresh:
                del fresh[name]
            elif name in known and name not in gone:
                gone[name] = None
            else:
                raise SiglumError(f"the log does not fit its index: it removes {name!r}, which is not there.")
        for place, name in enumerate(record.ids):
            if name in fresh or (name in known and name not in gone):
                raise SiglumError(f"the log does not fit its index: it adds {name!r}, which is there already.")
            fresh[name] = record, place
    return list(gone), fresh
