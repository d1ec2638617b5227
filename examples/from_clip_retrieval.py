"""Coming from clip-retrieval: a folder of pictures is encoded and indexed, and a client asks by words or by picture."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from PIL import Image, ImageDraw

import siglum
from siglum.build import build_folder

COLOURS = ("red", "green", "blue", "orange", "purple", "black")
SHAPES = {"circle": ("ellipse", 1.0), "square": ("rectangle", 1.0), "bar": ("rectangle", 0.25)}  # of which height


def draw(folder: Path) -> None:
    """Write 120 pictures with captions beside them, as img2dataset does: 000000007.jpg and 000000007.txt."""
    folder.mkdir()
    for number in range(120):
        colour, shape = COLOURS[number % len(COLOURS)], list(SHAPES)[number // len(COLOURS) % len(SHAPES)]
        (kind, high), size = SHAPES[shape], 12 + 4 * (number // 30)
        picture = Image.new("RGB", (96, 96), "grey")
        getattr(ImageDraw.Draw(picture), kind)((48 - size, 48 - size * high, 48 + size, 48 + size * high), fill=colour)
        picture.save(folder / f"{number:09d}.jpg", quality=95)
        (folder / f"{number:09d}.txt").write_text(f"a {colour} {shape}\n")


def longer(config: siglum.RunConfig) -> siglum.RunConfig:
    """Train for longer, in smaller batches, as the pictures are few."""
    return replace(config, fusion=replace(config.fusion, epochs=60, batch_size=32))


def main(folder: Path) -> None:
    torch.set_num_threads(1)  # the models are small: more threads would only wait for each other
    draw(folder / "pictures")

    # clip-retrieval inference --input_dataset pictures --output_folder embeddings
    # clip-retrieval index --embeddings_folder embeddings --index_folder index
    # results = ClipClient(url=url, indice_name="mine", num_images=4).query(text="a red circle")
    build_folder(folder / "pictures", folder / "run", encoder="builtin", scale="tiny", change=longer)
    client = siglum.Retriever.load(folder / "run")
    hits = client.search("a red circle", k=4)
    results = [{"id": hit.item_id, "url": str(hit.image), "similarity": hit.similarity} for hit in hits]
    for result in results:
        print(f"{result['similarity']:.2f}  {result['id']}")
    assert [Path(result["url"]).with_suffix(".txt").read_text() for result in results] == ["a red circle\n"] * 4
    assert all(0 < result["similarity"] <= 1 for result in results)

    # client.query(image="pictures/000000007.jpg")
    near = client.search(image=folder / "pictures" / "000000007.jpg", k=3, exclude_self=True)
    print("near 000000007.jpg:", *(hit.item_id for hit in near))
    assert len(near) == 3 and "000000007.jpg" not in [hit.item_id for hit in near]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch))
