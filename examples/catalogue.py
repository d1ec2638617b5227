"""This shoe, but red: a catalogue of products becomes a search engine for words, photographs and both together.

python examples/catalogue.py FOLDER RUN [ENCODER] [SCALE]
"""

from __future__ import annotations

import sys
from pathlib import Path

from siglum import Retriever
from siglum.build import build_folder
from siglum.data.catalogue import read_catalogue
from siglum.data.folder import id_of


def main(folder: Path, run: Path, encoder: str = "offline", scale: str = "auto") -> None:
    if not (folder / "products.jsonl").exists():
        print(f"{folder} holds no catalogue of products (products.jsonl); there is nothing to show")
        return
    built = build_folder(
        folder, run, encoder=encoder, scale=scale, workers=2, resume=run.exists(), say=print, progress=True
    )
    tried, first = built.held_out["captions"], built.held_out["success@1"]
    print(f"{built.items:,} products; of {tried} queries never learnt from {100 * first:.0f} % find theirs first")

    retriever, catalogue = Retriever.load(run), read_catalogue(folder)
    products = {id_of(product.picture): product for product in catalogue.products}
    change = next(one for one in catalogue.asked["test"] if one.task == "it2i")
    own = products[id_of(str(change.picture))]
    right = {item.removeprefix("i:") for item in change.positives}

    for what, words, picture in (
        ("By words", own.name, None),
        ("By picture", None, folder / own.picture),
        ("By picture and words", change.text, folder / own.picture),
    ):
        asked = " + ".join(part for part in (words, picture and picture.name) if part)
        print(f"\n{what}: {asked}")
        for hit in retriever.search(words, picture, k=6, exclude_self=picture is not None):
            found = products[hit.item_id]
            mark = "*" if found.id in right else "=" if found.group == own.group else " "
            print(f" {mark} {hit.rank}. {found.name} ({found.colour})")
    print("\n*: the product in that colour; =: another of its group")


if __name__ == "__main__":
    arguments = sys.argv[1:] or ["fashion", "runs/fashion"]
    main(Path(arguments[0]), Path(arguments[1]), *arguments[2:])
