"""The trie on a device, the static sizes it fixes, and plans made of them."""

from __future__ import annotations

import numpy as np
import torch
from test_static_engine import SIZES, Case

from siglum.index import Index
from siglum.search.static.beam_ops import spread
from siglum.search.static.plan import Shape
from siglum.search.static.trie import DeviceTrie, lay_out


def test_static_sizes_hold_every_beam() -> None:
    """The bound on children is that of the largest nodes: no beam of the reference has more."""
    case = Case(5, "clustered", items=200)
    trie = DeviceTrie(case.index, torch.device("cpu"))
    live, children = trie.widths(9)
    shape = Shape.of(trie, 9)
    for level in range(len(SIZES)):
        begins = np.flatnonzero(np.append(True, case.index.shared[1:] < level))
        ends = np.append(begins[1:], len(case.index))
        counts = np.bincount(case.index.children(begins, ends, level).parent)
        assert children[level] == np.sort(counts)[-live[level] :].sum()
        assert trie.nodes[level] == len(begins)
        leaves = [len(np.unique(case.index.codes(np.arange(a, b)), axis=0)) for a, b in zip(begins, ends, strict=True)]
        assert trie.leaf_counts(level).tolist() == leaves
        assert shape.most[level] == sum(sorted(leaves)[-live[level] :])


def test_small_batches_collapse_and_large_ones_save_tokens() -> None:
    case = Case(0, "uniform", items=400)
    shape = Shape.of(DeviceTrie(case.index, torch.device("cpu")), 10)
    small, large = shape.best(1), shape.best(1024)
    assert small.depth < large.depth or small.merged > large.merged
    assert shape.price(small, 1) <= shape.price(large, 1)
    assert shape.price(large, 1024) <= shape.price(small, 1024)


def test_the_trie_on_the_device_is_lean() -> None:
    sizes = (3, *([512] * 4), *([1024] * 8), *([2048] * 4))
    rng = np.random.default_rng(0)
    codes = np.stack([rng.integers(0, size, 2000) for size in sizes], 1)
    trie = DeviceTrie(Index.build([str(i) for i in range(2000)], codes, sizes, "tok"), torch.device("cpu"))
    tensors = [trie.words_NG, trie.shared_N, trie.leaf_row_I, *trie.branches]
    lengths = 4 * (len(sizes) - 1)
    assert sum(t.numel() * t.element_size() for t in tensors) / 2000 + lengths < 100
    assert max(place.word for place in lay_out(sizes)) == 5


def test_codes_come_back_from_words() -> None:
    case = Case(6)
    trie = DeviceTrie(case.index, torch.device("cpu"))
    rows = torch.tensor([[0, 5], [80, 89]], dtype=torch.int32)
    assert trie.codes(rows).numpy().tolist() == case.index.codes(rows.numpy().ravel()).reshape(2, 2, -1).tolist()
    for level in range(len(SIZES)):
        assert trie.code(rows, level).tolist() == trie.codes(rows)[..., level].tolist()


def test_runs_are_laid_end_to_end() -> None:
    owner, offset, used = spread(torch.tensor([[0, 3, 1], [2, 0, 0]], dtype=torch.int32), 5)
    assert owner[used].tolist() == [1, 1, 1, 2, 0, 0]
    assert offset[used].tolist() == [0, 1, 2, 0, 0, 1]
    assert used.tolist() == [[True] * 4 + [False], [True] * 2 + [False] * 3]
