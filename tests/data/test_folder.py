"""A folder of pictures: which files count, where captions come from, and what is held out."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siglum.data.folder import id_of, path_of, read_folder, words_of
from siglum.types import SiglumError

NAMES = ("b.jpg", "a.PNG", "sub/c.jpeg", "sub/deep/d.webp", "e f.tif")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Five files that pass for pictures (nobody opens them here) among others that do not."""
    folder = tmp_path / "photos"
    for name in (*NAMES, ".hidden.jpg", ".thumbs/x.jpg", "notes.md", "film.mp4"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    return folder


def captions_of(folder: Path, captions: str = "auto", seed: int = 0) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for queries in read_folder(folder, captions, seed).collection.queries.values():
        for query in queries:
            assert query.task == "t2i" and query.image is None
            found.setdefault(query.positives[0], []).append(str(query.text))
    return found


def test_every_picture_is_an_item_and_its_own_query(photos: Path) -> None:
    read = read_folder(photos)
    ids = ["a.PNG", "b.jpg", "e%20f.tif", "sub/c.jpeg", "sub/deep/d.webp"]
    assert [item.id for item in read.collection.items] == ids
    assert all(Path(str(item.image)).is_file() and item.text is None for item in read.collection.items)
    assert not read.supervised
    assert read.about == "5 pictures without captions: every picture is its own query"
    assert set(read.collection.queries) == {"train"}
    assert [(q.task, q.positives, q.text) for q in read.collection.queries["train"]] == [
        ("i2i", (i,), None) for i in ids
    ]


def test_sidecar_files_have_one_caption_a_line(photos: Path) -> None:
    (photos / "b.txt").write_text("a dog\n\n  two dogs \na dog\n")
    (photos / "sub" / "c.txt").write_text("\ufeffgrößere Hunde")
    (photos / "captions.csv").write_text("file,caption\nb.jpg,not this one\n")
    read = read_folder(photos)
    assert read.supervised
    assert read.about == "3 captions from sidecar files for 2 of 5 pictures"
    assert captions_of(photos) == {"b.jpg": ["a dog", "two dogs"], "sub/c.jpeg": ["größere Hunde"]}
    assert not read_folder(photos, "none").supervised
    (photos / "b.txt").write_bytes(b"\xe9t\xe9")
    with pytest.raises(SiglumError, match=r"b\.txt is not UTF-8 text"):
        read_folder(photos)


def write_table(path: Path, columns: tuple[str, str], rows: list[tuple[str, str]]) -> None:
    if path.suffix == ".parquet":
        pq.write_table(pa.table({name: [row[i] for row in rows] for i, name in enumerate(columns)}), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows))
    else:
        mark = {".csv": ",", ".tsv": "\t", ".txt": "| "}[path.suffix]
        path.write_text("".join(mark.join(row) + "\n" for row in [columns, *rows]))


@pytest.mark.parametrize("name", ["captions.csv", "captions.tsv", "captions.jsonl", "captions.parquet", "captions.txt"])
@pytest.mark.parametrize("columns", [("file_name", "text"), ("Image", "Caption"), ("path", "sentence")])
def test_a_table_names_files_and_captions(photos: Path, name: str, columns: tuple[str, str]) -> None:
    rows = [("b.jpg", "a dog"), ("sub/deep/d.webp", "a cat"), ("./b.jpg", "the dog again"), ("gone.jpg", "lost")]
    write_table(photos / name, columns, rows)
    where = "auto" if name != "captions.txt" else name
    assert captions_of(photos, where) == {"b.jpg": ["a dog", "the dog again"], "sub/deep/d.webp": ["a cat"]}
    about = read_folder(photos, where).about
    assert about.startswith(f"3 captions from {name} (columns {columns[0]} and {columns[1]}), where 1 rows name no")
    assert about.endswith("for 2 of 5 pictures")


def test_tables_of_image_folders_are_found(photos: Path) -> None:
    (photos / "metadata.jsonl").write_text('{"file_name": "e f.tif", "text": ["one", "two"], "label": 3}\n')
    assert captions_of(photos) == {"e%20f.tif": ["one", "two"]}


def test_files_are_found_by_path_or_by_a_name_no_other_has(photos: Path, tmp_path: Path) -> None:
    (photos / "other").mkdir()
    (photos / "other" / "b.jpg").write_bytes(b"")
    rows = [(str(photos / "other" / "b.jpg"), "absolute"), ("c.jpeg", "name"), ("d", "stem"), ("../photos/a.PNG", "up")]
    table = tmp_path / "elsewhere" / "mine.csv"
    table.parent.mkdir()
    write_table(table, ("file", "caption"), [*rows, ("x/b.jpg", "which of two?")])
    found = captions_of(photos, str(table))
    wanted = {"other/b.jpg": ["absolute"], "sub/c.jpeg": ["name"], "sub/deep/d.webp": ["stem"], "a.PNG": ["up"]}
    assert found == wanted


def test_columns_can_be_said(photos: Path) -> None:
    write_table(photos / "words.csv", ("key", "alt"), [("b.jpg", "a dog")])
    with pytest.raises(SiglumError, match=r"has the columns key, alt; say which .* words\.csv:image_column"):
        read_folder(photos, "words.csv")
    assert captions_of(photos, "words.csv:key:alt") == {"b.jpg": ["a dog"]}
    with pytest.raises(SiglumError, match="has the columns key, alt"):
        read_folder(photos, "words.csv:key:old")


def test_file_names_become_words(photos: Path) -> None:
    (photos / "RedDragonfly-on_leaf3.jpg").write_bytes(b"")
    (photos / "IMG_0042.jpg").write_bytes(b"")
    found = captions_of(photos, "names")
    assert found["RedDragonfly-on_leaf3.jpg"] == ["red dragonfly on leaf"]
    assert found["e%20f.tif"] == ["e f"]
    assert "IMG_0042.jpg" not in found
    assert words_of("ÉcoleÀ_l'été.png") == "école à l été"


@given(st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1))
def test_ids_have_no_white_space_and_lead_back(name: str) -> None:
    assert path_of(id_of(name)) == name
    assert id_of(name).split() == [id_of(name)]


def test_names_that_are_not_utf8_can_be_written() -> None:
    name = b"\xe9t\xe9 1.jpg".decode("utf-8", "surrogateescape")
    assert id_of(name) == "%E9t%E9%201.jpg"
    assert path_of(id_of(name)) == name


def test_a_tenth_of_the_pictures_is_held_out_with_all_captions(tmp_path: Path) -> None:
    for number in range(400):
        (tmp_path / f"{number}.jpg").write_bytes(b"")
        (tmp_path / f"{number}.txt").write_text(f"picture {number}\nnumber {number}\n")
    queries = read_folder(tmp_path).collection.queries
    held_out, trained = ({query.positives[0] for query in queries[split]} for split in ("val", "train"))
    assert not held_out & trained
    assert 20 <= len(held_out) <= 60
    assert len(queries["val"]) == 2 * len(held_out)
    assert len(queries["val"]) + len(queries["train"]) == 800
    again, other = (read_folder(tmp_path, seed=seed).collection.queries["val"] for seed in (0, 1))
    assert list(again) == list(queries["val"])
    assert list(other) != list(queries["val"])


def test_the_identity_follows_pictures_and_captions(photos: Path) -> None:
    seen = [read_folder(photos).identity]
    assert read_folder(photos).identity == seen[0]
    (photos / "b.jpg").write_bytes(b"another picture")
    seen.append(read_folder(photos).identity)
    (photos / "b.txt").write_text("a dog")
    seen.append(read_folder(photos).identity)
    (photos / "b.txt").write_text("a cat")
    seen.append(read_folder(photos).identity)
    assert len(set(seen)) == 4


def test_what_cannot_be_opened_is_listed_all_the_same(photos: Path) -> None:
    """Who reads it says what is wrong with it."""
    (photos / "dangling.jpg").symlink_to("gone.jpg")
    (photos / "x.jpg").mkdir()
    (photos / "phone.HEIC").write_bytes(b"")
    read = read_folder(photos)
    assert {"dangling.jpg", "x.jpg", "phone.HEIC"} <= {item.id for item in read.collection.items}
    assert read.stamps["dangling.jpg"] is read.stamps["x.jpg"] is None
    assert read.stamps["b.jpg"] == (5, (photos / "b.jpg").stat().st_mtime_ns)
    (photos / "gone.jpg").write_bytes(b"here")
    assert read_folder(photos).identity != read.identity


def test_a_folder_that_cannot_be_listed_is_named(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = os.scandir

    def closed(path: object) -> object:
        if str(path).endswith("sub"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", closed)
    read = read_folder(photos)
    assert read.unread == {"sub": f"the folder {photos / 'sub'} cannot be read (Permission denied)."}
    assert read.about.endswith("; folders that cannot be read: sub")
    with pytest.raises(SiglumError, match="sub cannot be read"):
        read_folder(photos, strict=True)


@pytest.mark.parametrize(
    ("captions", "words"),
    [
        ("sidecars", "must be auto, products, sidecar, names, none or a file that exists"),
        ("gone.csv", "must be auto, products, sidecar, names, none or a file that exists"),
        ("notes.md", "must be auto, products, sidecar, names, none or a file that exists"),
        ("sidecar", "no captions were found in sidecar files for the 5 pictures"),
        ("empty.csv", r"has the columns \(none\)"),
        ("strangers.csv", "none of the 2 rows .* names a picture .* in its column 'file'; the first says 'x.jpg'"),
        ("blank.csv", "no captions were found in blank.csv"),
        ("torn.parquet", "not a whole parquet file"),
        ("torn.jsonl", "not valid JSON"),
    ],
)
def test_captions_that_are_not_there(photos: Path, captions: str, words: str) -> None:
    (photos / "empty.csv").write_text("")
    (photos / "strangers.csv").write_text("file,caption\nx.jpg,a\ny.jpg,b\n")
    (photos / "blank.csv").write_text("file,caption\nb.jpg, \n")
    (photos / "torn.parquet").write_bytes(b"PAR1")
    (photos / "torn.jsonl").write_text('{"file": "b.jpg", "capt')
    with pytest.raises(SiglumError, match=words):
        read_folder(photos, captions)


def test_a_folder_needs_pictures(tmp_path: Path) -> None:
    with pytest.raises(SiglumError, match=r"holds no pictures; looked for \.jpg"):
        read_folder(tmp_path)
    with pytest.raises(SiglumError, match="does not exist"):
        read_folder(tmp_path / "gone")
