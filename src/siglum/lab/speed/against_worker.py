"""One side of a comparison of commits: answers the same queries with whichever siglum is on its path.

A script that runs with the code of either commit, so it uses only what both have: `Index`, `CodeDecoder`, the tokenizer
and `Retriever.rank`, which is what users call. It reads requests from stdin and answers on stdout, a line of JSON each,
and computes only between the two.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from siglum.search.retriever import Retriever

K = 50
"""Items a query asks for."""


def main() -> None:
    """Open what is to be searched, say so, then answer until the pipe ends."""
    inputs, scratch, device, threads = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    # Answers have a channel of their own: whatever a library prints must not get among them.
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)

        def tell(answer: dict[str, Any]) -> None:
            answers.write(json.dumps(answer) + "\n")
            answers.flush()

        try:
            retriever, query_QD = open_retriever(inputs, scratch, device, threads)
        except Exception as error:
            tell(failure(error))
            return
        tell({"siglum": str(Path(sys.modules["siglum"].__file__ or "").parent), "queries": len(query_QD)})
        for line in sys.stdin:
            try:
                tell(answer(retriever, query_QD, json.loads(line)))
            except Exception as error:
                tell(failure(error))


def failure(error: Exception) -> dict[str, str]:
    """Return what went wrong, in one line."""
    from siglum.types import SiglumError

    text = str(error).strip().partition("\n")[0].rstrip(".")[:300]
    return {"failed": text if isinstance(error, SiglumError) else f"{type(error).__name__}: {text}"}


def open_retriever(inputs: Path, scratch: Path, device: str, threads: int) -> tuple[Retriever, Tensor]:
    """Return a retriever made of the inputs by this side's own code, its index mapped from disk, and the queries."""
    import torch
    from safetensors.torch import load_file

    from siglum.config import DecoderConfig, FusionConfig, SearchConfig, TokenizerConfig, from_dict
    from siglum.fuse.modules import build_fusion
    from siglum.generate.decoder import CodeDecoder
    from siglum.index import Index
    from siglum.search.retriever import Retriever
    from siglum.tokenize.rq import ResidualQuantizer
    from siglum.tokenize.train import Tokenizer

    torch.set_num_threads(threads)
    facts = json.loads((inputs / "facts.json").read_text())
    arrays, weights = load_file(inputs / "arrays.safetensors"), load_file(inputs / "decoder.safetensors")
    sizes, dim = tuple(facts["sizes"]), facts["dim"]
    quantizer = ResidualQuantizer(from_dict(TokenizerConfig, facts["tokenizer"]), dim)
    for level, book in enumerate(quantizer.codebooks):
        book.data.copy_(arrays[f"book_{level}"])
    decoder = CodeDecoder(from_dict(DecoderConfig, facts["decoder"]), sizes, dim)
    decoder.load_state_dict(weights)
    fusion = build_fusion(FusionConfig(kind="none", dim=dim), dim, 0)
    built = Index.build([str(place) for place in range(len(arrays["codes"]))], arrays["codes"].numpy(), sizes, "same")
    built.save(scratch)
    retriever = Retriever(
        Tokenizer(fusion.to(device), quantizer.to(device)),
        Index.load(scratch),
        decoder=decoder.to(device).eval(),
        config=from_dict(SearchConfig, facts["search"]),
        device=device,
    )
    return retriever, arrays["queries"]


def answer(retriever: Retriever, query_QD: Tensor, asked: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds of all calls (host memory to host memory), those of the CPU, and what every query found."""
    import torch

    batch, options = asked["batch"], {"mode": asked["mode"], "precision": asked["precision"]}
    seconds, cpu = 0.0, 0.0
    found: list[list[int]] = []
    for call in range(asked["calls"]):
        start = asked["start"] + call * batch
        some_QD = query_QD[torch.arange(start, start + batch) % len(query_QD)]
        begin, cpu_begin = perf_counter(), process_time()
        rankings = retriever.rank(some_QD, k=K, batch_size=batch, **options)
        seconds, cpu = seconds + perf_counter() - begin, cpu + process_time() - cpu_begin
        found += [ranking.position.tolist() for ranking in rankings]
    return {"seconds": seconds, "cpu_seconds": cpu, "found": found}


if __name__ == "__main__":
    main()
