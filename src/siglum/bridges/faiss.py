"""faiss' residual and product quantisers, and the indexes that hold them, as Siglum's, and Siglum's as faiss'.

Codewords go over as they are, so codes mean the same vectors on both sides.
Shapes: N items, L levels, V codewords of a level, D numbers a vector, W numbers of a sub-space.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from siglum.bridges.items import CodedItems
from siglum.config import TokenizerConfig
from siglum.tokenize.base import Quantiser
from siglum.tokenize.pq import ProductQuantizer
from siglum.tokenize.rq import ResidualQuantizer
from siglum.types import SiglumError, shown

FAR = np.float32(1e15)
"""Every number of a codeword that no vector is near: it fills a vocabulary up to a power of two, as faiss needs it."""
READ = ("ResidualQuantizer", "ProductQuantizer", "IndexResidualQuantizer", "IndexPQ")


def from_faiss(found: Any) -> CodedItems:
    """Return the items of a faiss index, or none for a bare quantiser, with the quantiser as one of Siglum's.

    Items are named by their faiss ids. Codes, codewords and reconstructions are the same, bit for bit. Example:

        items = siglum.bridges.from_faiss(faiss.read_index("items.index"))
        best = siglum.fused_beam_search(items.trie(), None, queries, codebooks=items.codebooks)
    """
    faiss = _faiss()
    index, ids, rotation_DD = _unwrapped(faiss, found)
    quantiser: Quantiser
    source = getattr(index, "rq", getattr(index, "pq", index))
    trained = "" if getattr(index, "is_trained", True) else ", which is not trained"
    if trained or type(index).__name__ not in READ:
        raise SiglumError(
            f"this is a faiss {type(index).__name__}{trained}; what is read are {', '.join(READ)}, trained, perhaps in"
            " an IndexIDMap or behind a rotation."
        )
    if isinstance(source, faiss.ResidualQuantizer):
        if rotation_DD is not None:
            raise SiglumError("a residual quantiser behind a transformation of faiss is not read; train it without.")
        quantiser, bits = _read_residual(faiss, source)
    else:
        quantiser, bits = _read_product(faiss, source, rotation_DD), np.full(source.M, source.nbits, np.int32)
    number = getattr(index, "ntotal", 0)
    packed = faiss.vector_to_array(index.codes).reshape(number, source.code_size) if number else None
    codes_NL = np.zeros((0, source.M), np.int64) if packed is None else faiss.unpack_bitstrings(packed, bits)
    names = [str(one) for one in (range(number) if ids is None else ids.tolist())]
    inner = getattr(index, "metric_type", faiss.METRIC_L2) == faiss.METRIC_INNER_PRODUCT
    metric: Literal["l2", "inner_product"] = "inner_product" if inner else "l2"
    return CodedItems(names, codes_NL.astype(np.int64), quantiser.sizes, quantiser, metric)


def to_faiss(items: CodedItems | Quantiser) -> Any:
    """Return a faiss index of items and their quantiser, or an empty one of a quantiser; ids are row numbers.

    Product codes of sub-spaces of one width become an `IndexPQ`, behind a rotation unless the axes are faiss' own. All
    others become an `IndexResidualQuantizer`, as every reconstruction is a sum of codewords; there a modality token is
    a level whose code faiss would choose by distance for vectors that it adds itself.
    """
    faiss, coded = _faiss(), items if isinstance(items, CodedItems) else CodedItems([], np.zeros((0, 0)), (), items)
    quantiser = coded.quantiser
    if quantiser is None:
        raise SiglumError("faiss needs codewords, and of these items codes alone are known.")
    if not isinstance(quantiser, Quantiser):
        raise SiglumError(f"to_faiss takes coded items (siglum.bridges.CodedItems) or a quantiser, not {shown(items)}.")
    quantiser.check_geometry("a faiss index")
    bits = np.array([max(1, (size - 1).bit_length()) for size in quantiser.sizes], np.int32)
    widths = set(quantiser.width_L.tolist()) if isinstance(quantiser, ProductQuantizer) else set()
    if isinstance(quantiser, ProductQuantizer) and len(widths) == 1 and not quantiser.has_modality:
        bits[:] = bits.max()
        index = inner = _write_product(faiss, quantiser, int(bits[0]))
        if not torch.equal(quantiser.axes_DD, torch.eye(quantiser.dim).to(quantiser.axes_DD)):
            index = _rotated(faiss, inner, quantiser.axes_DD)
    else:
        index = inner = _write_residual(faiss, quantiser, bits)
    if coded.metric == "inner_product":
        index.metric_type = inner.metric_type = faiss.METRIC_INNER_PRODUCT
    if len(coded):
        codes_NL = np.ascontiguousarray(coded.codes_NL, np.int32)
        inner.add_sa_codes(faiss.pack_bitstrings(codes_NL, bits.tolist()))
        index.ntotal = inner.ntotal
    return index


def _faiss() -> ModuleType:
    try:
        import faiss
    except ImportError as error:
        raise SiglumError("this bridge needs the package faiss; install it with `pip install faiss-cpu`.") from error
    return faiss  # type: ignore[no-any-return]


def _unwrapped(faiss: ModuleType, found: Any) -> tuple[Any, np.ndarray | None, np.ndarray | None]:
    """Return what lies inside a map of ids and a rotation, with both where they are there."""
    ids, rotation_DD = None, None
    while True:
        found = faiss.downcast_index(found) if isinstance(found, faiss.Index) else found
        if isinstance(found, faiss.IndexIDMap | faiss.IndexIDMap2):
            ids, found = faiss.vector_to_array(found.id_map), found.index
        elif isinstance(found, faiss.IndexPreTransform) and found.chain.size() == 1:
            turn, found = faiss.downcast_VectorTransform(found.chain.at(0)), found.index
            rotation_DD = _rotation(faiss, turn)
        else:
            return found, ids, rotation_DD


def _rotation(faiss: ModuleType, turn: Any) -> np.ndarray:
    """Return a rotation's matrix (D, D), refusing transformations that lose or move something."""
    square = isinstance(turn, faiss.LinearTransform) and turn.d_in == turn.d_out
    matrix: np.ndarray = (
        faiss.vector_to_array(turn.A).reshape(turn.d_out, turn.d_in) if square else np.zeros((1, 1), np.float32)
    )
    shift = bool(turn.have_bias and np.any(faiss.vector_to_array(turn.b))) if square else True
    if shift or not np.allclose(matrix @ matrix.T, np.eye(len(matrix)), atol=1e-4):
        raise SiglumError(f"a faiss {type(turn).__name__} that is no rotation is not read; train the index without it.")
    return matrix


def _read_residual(faiss: ModuleType, source: Any) -> tuple[ResidualQuantizer, np.ndarray]:
    bits, starts = (faiss.vector_to_array(one).astype(np.int64) for one in (source.nbits, source.codebook_offsets))
    words = faiss.vector_to_array(source.codebooks).reshape(-1, source.d)
    books = [_used_words(words[a:b]) for a, b in zip(starts, starts[1:], strict=False)]
    config = TokenizerConfig(
        vocab=tuple(map(len, books)), modality="none", assign_beam=source.max_beam_size, update="ema"
    )
    quantiser = ResidualQuantizer(config, source.d)
    _take(quantiser, books)
    return quantiser, bits.astype(np.int32)


def _read_product(faiss: ModuleType, source: Any, rotation_DD: np.ndarray | None) -> ProductQuantizer:
    words = faiss.vector_to_array(source.centroids).reshape(source.M, source.ksub, source.dsub)
    parts = [_used_words(part) for part in words]
    config = TokenizerConfig(kind="product", vocab=tuple(map(len, parts)), modality="none")
    quantiser = ProductQuantizer(config, source.d)
    quantiser.width_L.fill_(source.dsub)
    books = [np.zeros((len(part), source.d), np.float32) for part in parts]
    for level, (book, part) in enumerate(zip(books, parts, strict=True)):
        book[:, level * source.dsub : (level + 1) * source.dsub] = part
    if rotation_DD is not None:
        quantiser.axes_DD.copy_(torch.from_numpy(rotation_DD.T.copy()))
        books = [book @ rotation_DD for book in books]
    _take(quantiser, books)
    return quantiser


def _used_words(words_VD: np.ndarray) -> np.ndarray:
    """Return codewords without those that only fill up."""
    used: np.ndarray = words_VD[~(words_VD == FAR).all(1)]
    return used


@torch.no_grad()
def _take(quantiser: Quantiser, books: Sequence[np.ndarray]) -> None:
    for level, (own, book) in enumerate(zip(quantiser.codebooks, books, strict=True)):
        own.copy_(torch.from_numpy(np.ascontiguousarray(book)))
        if isinstance(quantiser, ResidualQuantizer):
            getattr(quantiser, f"total_{level}").copy_(own)  # of counts of 1, where training would go on from


def _filled(book_VD: Tensor, bits: int) -> np.ndarray:
    """Return codewords filled up to a power of two."""
    words = np.full((1 << bits, book_VD.shape[1]), FAR, np.float32)
    words[: len(book_VD)] = book_VD.detach().cpu().numpy()
    return words


def _write_residual(faiss: ModuleType, quantiser: Quantiser, bits: np.ndarray) -> Any:
    vector = faiss.UInt64Vector()
    faiss.copy_array_to_vector(bits.astype(np.uint64), vector)
    index = faiss.IndexResidualQuantizer(quantiser.dim, vector)
    words = [_filled(book, int(own)) for book, own in zip(quantiser.codebooks, bits, strict=True)]
    faiss.copy_array_to_vector(np.concatenate(words).ravel(), index.rq.codebooks)
    index.rq.max_beam_size = max(1, quantiser.config.assign_beam)
    index.rq.is_trained = index.is_trained = True
    index.rq.compute_codebook_tables()
    return index


def _write_product(faiss: ModuleType, quantiser: ProductQuantizer, bits: int) -> Any:
    index = faiss.IndexPQ(quantiser.dim, len(quantiser.sizes), bits)
    levels = zip(quantiser.codebooks, quantiser.bases(), strict=True)
    words = [_filled(book_VD @ basis_DW, bits) for book_VD, basis_DW in levels]
    faiss.copy_array_to_vector(np.concatenate(words).ravel(), index.pq.centroids)
    index.is_trained = True
    return index


def _rotated(faiss: ModuleType, inner: Any, axes_DD: Tensor) -> Any:
    """Return an index behind the rotation to a quantiser's axes."""
    turn = faiss.LinearTransform(len(axes_DD), len(axes_DD), False)
    faiss.copy_array_to_vector(np.ascontiguousarray(axes_DD.T.cpu().numpy()).ravel(), turn.A)
    turn.is_trained = True
    turn.set_is_orthonormal()
    index = faiss.IndexPreTransform(turn, inner)
    index.referenced_objects = [turn, inner]  # Python would let go of them, and faiss does not hold them
    return index
