"""Items by their codes, the one thing that all bridges speak of, and codes as parquet.

Shapes: N items, L levels (the modality token, where there is one, is level 0), D numbers a vector.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from torch import Tensor

from siglum.data.parquet import load_pyarrow
from siglum.files import atomic
from siglum.given import as_file, listed
from siglum.index import Index
from siglum.tokenize.base import Quantiser
from siglum.types import SiglumError, shown

if TYPE_CHECKING:
    from siglum.search.retriever import Retriever

KEY = b"siglum"
"""Under which the file's metadata holds the vocabularies."""


@dataclass(frozen=True, slots=True)
class CodedItems:
    """Items by their codes and, where it is known, the quantiser that gave them those."""

    ids: list[str]
    codes_NL: np.ndarray
    sizes: tuple[int, ...]
    """Vocabulary of every level."""
    quantiser: Quantiser | None = None
    metric: Literal["l2", "inner_product"] = "l2"
    """By what the library they come from ranks reconstructions."""

    @classmethod
    def of(cls, retriever: Retriever) -> CodedItems:
        """Return the items of a retriever as they are now, in pool order."""
        if not isinstance(getattr(retriever, "index", None), Index):
            raise SiglumError(f"coded items are those of a retriever (siglum.Retriever), not {shown(retriever)}.")
        index = retriever.index
        codes_NL = np.empty((len(index), index.levels), np.int64)
        codes_NL[index.order] = index.codes()
        return cls(list(index.ids), codes_NL, index.layout.sizes, retriever.tokenizer.quantizer)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def codebooks(self) -> list[Tensor]:
        """The codewords (V, D) of every level; none where no quantiser is known, or prefixes have no vectors."""
        return [] if self.quantiser is None else self.quantiser.books()

    def trie(self) -> Index:
        """Return the trie of the items, as `siglum.fused_beam_search` takes it."""
        return Index.build(self.ids, self.codes_NL, self.sizes, tokenizer="")


def write_codes(path: str | Path, items: CodedItems | Retriever) -> None:
    """Write codes as parquet: a column `id`, a column `codes` of lists, and the vocabularies in the metadata."""
    arrow, parquet = load_pyarrow()
    coded = items if isinstance(items, CodedItems) else CodedItems.of(items)
    flat = arrow.array(np.ascontiguousarray(coded.codes_NL, np.int32).reshape(-1))
    columns = {
        "id": arrow.array(listed(coded.ids), arrow.string()),
        "codes": arrow.FixedSizeListArray.from_arrays(flat, len(coded.sizes)),
    }
    table = arrow.table(columns).replace_schema_metadata({KEY: json.dumps({"sizes": list(coded.sizes)})})
    with atomic(as_file(path)) as file:
        parquet.write_table(table, file)


def read_codes(path: str | Path) -> CodedItems:
    """Read codes that `write_codes` wrote, or others in two such columns, whose vocabularies are as large as needed."""
    arrow, parquet = load_pyarrow()
    path = as_file(path)
    try:
        table = parquet.read_table(path)
    except (arrow.ArrowException, OSError) as error:
        raise SiglumError(f"{path} is not a whole parquet file ({error}).") from error
    if not {"id", "codes"} <= set(table.column_names):
        raise SiglumError(f"{path} has the columns {', '.join(table.column_names)}, but codes are in id and codes.")
    rows = table["codes"].to_pylist()
    try:
        codes_NL = np.array(rows, np.int64).reshape(len(rows), -1)
    except (ValueError, TypeError, OverflowError) as error:
        raise SiglumError(f"the codes in {path} must be lists of whole numbers, all of one length.") from error
    told = json.loads((table.schema.metadata or {}).get(KEY, b"{}")).get("sizes")
    sizes = tuple(told) if told else tuple(int(top) + 1 for top in codes_NL.max(0, initial=0))
    return CodedItems(listed(str(one) for one in table["id"].to_pylist()), codes_NL, sizes)


def checked_codes(found: np.ndarray, what: str) -> np.ndarray:
    """Return codes that a file or an object holds as int64 (N, L), refusing what are none."""
    whole = found.astype(np.int64) if found.dtype.kind in "iuf" and np.isfinite(found).all() else None
    if whole is None or found.ndim != 2 or not found.size or (whole != found).any() or whole.min() < 0:
        raise SiglumError(
            f"{what} holds {found.dtype} {found.shape} from {shown(found.ravel()[:3].tolist())}, no codes."
        )
    return whole
