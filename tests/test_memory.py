"""A million items in under a gibibyte: indexing, writing, mapping and searching, measured in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, resource, sys
from pathlib import Path
import torch, siglum.search.beam
import numpy as np

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

before = peak()
torch.set_num_threads(1)
from siglum.config import DecoderConfig
from siglum.generate.decoder import CodeDecoder
from siglum.index import Index
from siglum.search.beam import search_items
from siglum.search.hits import as_hits
from siglum.search.scorers import DecoderScorer, GeometryScorer, SumScorer

items, sizes, folder = 1_000_000, (3,) + (512,) * 4 + (1024,) * 8 + (2048,) * 4, Path(sys.argv[1])
rng = np.random.default_rng(0)
codes = np.empty((items, len(sizes)), np.int16)
for level, size in enumerate(sizes):
    codes[:, level] = rng.integers(0, size, items, dtype=np.int16)
target = codes[::100_000].copy()
Index.build([f"item-{i}" for i in range(items)], codes, sizes, "tok").save(folder)
del codes
index = Index.load(folder, "tok")
generator = torch.Generator().manual_seed(0)
books = [0.5 ** min(level, 6) * torch.randn(size, 8, generator=generator) for level, size in enumerate(sizes)]
query = sum(book[torch.as_tensor(target[:, level]).long()] for level, book in enumerate(books))
config = DecoderConfig(d_model=32, d_ff=32, d_kv=8, heads=2, encoder_layers=0, decoder_layers=1)
decoder = CodeDecoder(config, sizes, 8, generator).eval()
scorer = SumScorer([DecoderScorer(decoder), GeometryScorer(books, 100.0)])
found = search_items(scorer, index, query, beam=50, k=10)
hits = [[hit.item_id for hit in as_hits(index, ranking)] for ranking in found]
files = {path.name: path.stat().st_size for path in folder.iterdir()}
print(json.dumps({"beyond": peak() - before, "files": files, "hits": hits}))
"""


@pytest.mark.timeout(120)
def test_a_million_items_stay_small(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "index")], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["beyond"] < 1 << 30
    assert set(found["files"]) == {"index.safetensors", "ids.safetensors", "stage.json"}
    beside_ids = sum(size for name, size in found["files"].items() if name != "ids.safetensors")
    assert beside_ids <= 24.01 * 1_000_000
    # Queries lie on their targets' reconstructions.
    own = [f"item-{100_000 * place}" in hits for place, hits in enumerate(found["hits"])]
    assert sum(own) >= 8
