"""A folder of photographs becomes a search engine: with captions, without, and a page of the hits to mail."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from PIL import Image

from siglum import Retriever, build_folder
from siglum.data.source import read_source
from siglum.lab.world.collection import World
from siglum.pages.contact_sheet import make_cards, render_sheet


def take_photos(folder: Path, number: int) -> None:
    """Write pictures with sidecar captions; drawn scenes stand in for a camera."""
    world = World(6 * number, seed=0)
    pictures = {item.id: item.image for item in world.items("train") if item.image is not None and item.text is None}
    for query in world.queries("train", "t2i", 3):
        if query.positives[0] in list(pictures)[:number]:
            path = folder / f"{query.positives[0]}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pictures[query.positives[0]].pixels(96)).save(path)  # type: ignore[union-attr]
            with path.with_suffix(".txt").open("a") as file:
                file.write(f"{query.text}\n")


def main() -> None:
    torch.set_num_threads(1)  # the models are small: more threads would only wait for each other
    with tempfile.TemporaryDirectory() as scratch:
        photos, run = Path(scratch, "photos"), Path(scratch, "run")
        take_photos(photos, number=120)
        built = build_folder(photos, run, encoder="builtin", scale="tiny")
        print(f"{built.items} pictures; {built.about}")
        picture = sorted(photos.glob("*.png"))[7]
        words = picture.with_suffix(".txt").read_text().splitlines()[0]
        hits = Retriever.load(run).search(words, k=6)
        print(f"By words: {words}")
        for hit in hits:
            print(f" {'*' if hit.item_id == picture.name else ' '} {hit.rank}. {hit.score:6.2f}  {hit.item_id}")
        cards = make_cards(hits, read_source(run), Path(scratch, "hits.html"))
        page = render_sheet("photos", words, None, cards)
        print(
            f"The contact sheet has {len(cards)} pictures and {len(page) // 1000} kB; nothing else is needed to see it"
        )

        alone = build_folder(photos, Path(scratch, "alone"), captions="none", encoder="builtin", scale="tiny")
        print(f"\n{alone.about}")
        found = Retriever.load(alone.run).search(picture, k=1)
        print(f"By picture: {picture.name} finds {found[0].item_id}")


if __name__ == "__main__":
    main()
