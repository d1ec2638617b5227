"""Codes as parquet and the semantic ids of GRID, in files laid out as GRID's own code lays them out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import siglum
from siglum.bridges import CodedItems, read_codes, read_grid
from siglum.search.retriever import Retriever
from siglum.types import SiglumError

CODES = torch.tensor([[3, 0], [1, 2], [3, 0], [0, 1], [3, 0]])


def test_codes_are_those_of_the_run(call: Any, world_run: Path, tmp_path: Path) -> None:
    told = json.loads(call("export", world_run, "--codes", tmp_path / "codes.parquet", "--json"))
    assert told["written"] == [str(tmp_path / "codes.parquet")]
    retriever, found = Retriever.load(world_run), read_codes(tmp_path / "codes.parquet")
    assert found.ids == list(retriever.index.ids) and found.sizes == retriever.tokenizer.quantizer.sizes
    assert np.array_equal(found.codes_NL, retriever.index.codes_of(found.ids))
    table = pq.read_table(tmp_path / "codes.parquet")
    assert table.column_names == ["id", "codes"] and table.num_rows == len(retriever.index)
    assert table["codes"][0].as_py() == found.codes_NL[0].tolist()


def test_the_index_of_a_run_for_faiss(call: Any, world_run: Path, tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss")
    call("export", world_run, "--faiss", tmp_path / "items.index")
    coded, index = CodedItems.of(Retriever.load(world_run)), faiss.read_index(str(tmp_path / "items.index"))
    assert coded.quantiser is not None
    wanted = coded.quantiser.decode(torch.from_numpy(coded.codes_NL)).detach().numpy()
    assert np.allclose(index.reconstruct_n(0, len(coded)), wanted, atol=1e-6)


def test_an_export_needs_something_to_export(world_run: Path, capsys: Any) -> None:
    from siglum.cli.main import main

    assert main(["export", str(world_run)]) == 1
    assert "--codes FILE, --faiss FILE or both" in capsys.readouterr().err


def test_codes_of_others_are_read(tmp_path: Path) -> None:
    table = pa.table({"id": [7, 8], "codes": [[1, 0], [0, 5]], "title": ["a", "b"]})
    pq.write_table(table, tmp_path / "x.parquet")
    found = read_codes(tmp_path / "x.parquet")
    assert (found.ids, found.codes_NL.tolist(), found.sizes) == (["7", "8"], [[1, 0], [0, 5]], (2, 6))
    pq.write_table(table.drop_columns("codes"), tmp_path / "x.parquet")
    with pytest.raises(SiglumError, match="has the columns id, title, but codes are in id and codes"):
        read_codes(tmp_path / "x.parquet")
    pq.write_table(pa.table({"id": ["a", "b"], "codes": [[1], [0, 5]]}), tmp_path / "x.parquet")
    with pytest.raises(SiglumError, match="must be lists of whole numbers, all of one length"):
        read_codes(tmp_path / "x.parquet")
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    with pytest.raises(SiglumError, match="is not a whole parquet file"):
        read_codes(tmp_path / "x.parquet")


def numbered(codes: torch.Tensor) -> torch.Tensor:
    """Add the level that numbers the items of equal codes."""
    seen: dict[tuple[int, ...], int] = {}
    last = []
    for row in map(tuple, codes.tolist()):
        last.append(seen.get(row, 0))
        seen[row] = last[-1] + 1
    return torch.cat([codes, torch.tensor(last)[:, None]], 1)


@pytest.mark.parametrize("written", [CODES.float(), numbered(CODES), numbered(CODES).T.contiguous()])
def test_semantic_ids_of_grid(written: torch.Tensor, tmp_path: Path) -> None:
    """As merged (fp32, items first), with duplicates numbered, and turned round, which is what GRID trains on."""
    torch.save(written, tmp_path / "merged_predictions_tensor.pt")
    found = read_grid(tmp_path / "merged_predictions_tensor.pt")
    assert found.ids == ["0", "1", "2", "3", "4"] and np.array_equal(found.codes_NL[:, :2], CODES.numpy())
    if len(found.sizes) == 3:
        assert found.codes_NL[:, 2].tolist() == [0, 0, 1, 0, 2] and found.sizes == (4, 3, 3)
        assert found.trie().collisions().items == 0
    trie = siglum.build_trie(found.codes_NL)
    assert len(trie) == 5


def test_what_are_no_semantic_ids_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    for content, words in (
        ({"a": CODES}, "holds a dict, but semantic ids of GRID are one tensor"),
        (CODES + 0.5, "no codes"),
        (CODES - 2, "no codes"),
        (CODES[:2], r"say how many levels they have"),
    ):
        torch.save(content, path)
        with pytest.raises(SiglumError, match=words):
            read_grid(path)
    assert read_grid(path, levels=2).codes_NL.tolist() == CODES[:2].tolist()
    torch.save(CODES, path)
    with pytest.raises(SiglumError, match="say how many levels"):
        read_grid(path, levels=4)
    path.write_bytes(b"no torch file")
    with pytest.raises(SiglumError, match=r"give merged_predictions_tensor\.pt"):
        read_grid(path)
