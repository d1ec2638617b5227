"""Every kind of picture becomes the same square RGB pixels, and unreadable ones are skipped and counted."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from siglum.data.pictures import PictureError, load_picture
from siglum.types import SiglumError


class Plain:
    """A drawing of one grey."""

    def __init__(self, side: int | None = None) -> None:
        """Draw the wanted size, or always `side`."""
        self.side = side

    def pixels(self, size: int) -> np.ndarray:
        """Return grey pixels."""
        return np.full((self.side or size, self.side or size, 3), 90, np.uint8)


def halves(height: int = 40, width: int = 60) -> np.ndarray:
    """Return a picture whose left half is red and whose right half is blue."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[:, : width // 2, 0] = 255
    pixels[:, width // 2 :, 2] = 255
    return pixels


def test_files_are_resized_without_cropping(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(halves()).save(path)
    pixels = load_picture(path, 20)
    assert pixels.shape == (20, 20, 3)
    assert pixels.dtype == np.uint8
    assert pixels[10, 1].tolist() == [255, 0, 0]
    assert pixels[10, 18].tolist() == [0, 0, 255]
    assert np.array_equal(load_picture(str(path), 20), pixels)
    assert np.array_equal(load_picture(halves(), 20), pixels)


def test_a_large_jpeg_is_decoded_small_but_alike(tmp_path: Path) -> None:
    rows, columns = np.mgrid[0:800, 0:1200]
    smooth = np.stack([rows * 255 // 800, columns * 255 // 1200, (rows + columns) * 255 // 2000], -1).astype(np.uint8)
    path = tmp_path / "a.jpg"
    Image.fromarray(smooth).save(path, quality=95)
    with Image.open(path) as image:
        whole = np.array(image.resize((32, 32), Image.Resampling.BICUBIC)).astype(int)
    assert np.abs(load_picture(path, 32).astype(int) - whole).max() <= 4


def test_exif_orientation_turns_the_picture(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    Image.fromarray(halves()).save(path, exif=exif)
    assert load_picture(path, 20)[10, 1].tolist() == [0, 0, 255]


def test_modes_become_rgb(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    wanted = {
        "grey": (Image.new("L", (8, 8), 100), 100),
        "grey and alpha": (Image.new("LA", (8, 8), (100, 255)), 100),
        "bits": (Image.new("1", (8, 8), 1), 255),
        "16 bits": (Image.fromarray(np.full((8, 8), 100 * 257, np.uint16)), 100),
        "opaque": (Image.new("RGBA", (8, 8), (100, 100, 100, 255)), 100),
        "transparent": (Image.new("RGBA", (8, 8), (0, 0, 0, 0)), 255),
        "half transparent": (Image.new("RGBA", (8, 8), (0, 0, 0, 128)), 127),
    }
    for name, (image, value) in wanted.items():
        image.save(path)
        assert np.array_equal(load_picture(path, 4), np.full((4, 4, 3), value)), name


def test_palettes_keep_colours_and_transparency(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    image = Image.new("P", (8, 8), 1)
    image.putpalette([0, 0, 0, 200, 10, 30])
    image.save(path)
    assert load_picture(path, 4)[0, 0].tolist() == [200, 10, 30]
    image.save(path, transparency=1)
    assert load_picture(path, 4)[0, 0].tolist() == [255, 255, 255]


def test_cmyk_jpeg_becomes_rgb(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(path)
    red, green, blue = load_picture(path, 4)[2, 2].tolist()
    assert red > 240
    assert max(green, blue) < 15


def test_arrays_of_the_right_size_are_returned_as_they_are() -> None:
    pixels = halves(8, 8)
    assert load_picture(pixels, 8) is pixels
    assert np.array_equal(load_picture(pixels[:, ::-1], 4), load_picture(np.ascontiguousarray(pixels[:, ::-1]), 4))


def test_arrays_and_drawings_of_another_shape_are_refused(subtests: pytest.Subtests) -> None:
    wrong = [
        np.zeros((4, 4), np.uint8),
        np.zeros((4, 4, 3)),
        np.zeros((3, 4, 4), np.uint8),
        np.zeros((0, 4, 3), np.uint8),
    ]
    for pixels in wrong:
        with subtests.test(f"{pixels.dtype} {pixels.shape}"), pytest.raises(PictureError, match="must be uint8"):
            load_picture(pixels, 4)
    assert load_picture(Plain(), 5).shape == (5, 5, 3)
    with pytest.raises(PictureError, match=r"the drawing Plain is uint8 \(3, 3, 3\), but must be uint8 \(5, 5, 3\)"):
        load_picture(Plain(3), 5)


def damaged(folder: Path) -> list[Path]:
    """Return pictures that cannot be read: missing, text, empty, cut short, damaged within, floating-point."""
    whole, noise = folder / "whole.png", np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    Image.fromarray(noise).save(whole)
    data = whole.read_bytes()
    contents = {"text.png": b"not a picture", "empty.png": b"", "cut.png": data[: len(data) // 2]}
    contents["hurt.png"] = data[:200] + bytes(100) + data[300:]
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    Image.fromarray(noise).save(folder / "whole.jpg")
    (folder / "cut.jpg").write_bytes((folder / "whole.jpg").read_bytes()[:900])
    Image.fromarray(noise[..., 0].astype(np.float32)).save(folder / "float.tiff")
    return [folder / name for name in (*contents, "gone.png", "cut.jpg", "float.tiff")] + [folder]


def test_unreadable_files_raise_one_sentence_with_the_path(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for path in damaged(tmp_path):
        with subtests.test(path.name):
            with pytest.raises(PictureError, match=str(path)) as caught:
                load_picture(path, 8)
            assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("limit", [40, 80])
def test_decompression_bombs_are_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(halves(10, 10)).save(path)
    assert load_picture(path, 4).shape == (4, 4, 3)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)  # Pillow itself refuses only twice the limit
    with pytest.raises(PictureError, match="pixels"):
        load_picture(path, 4)


def test_what_is_no_picture_at_all_is_never_skipped() -> None:
    with pytest.raises(SiglumError, match="but this is a NoneType"):
        load_picture(None, 8)  # type: ignore[arg-type]
    with pytest.raises(SiglumError, match="size is 0"):
        load_picture(halves(), 0)


def bad_files(folder: Path) -> dict[str, str]:
    """Make everything that is a picture by its name alone, and return a part of what must be said of each."""
    good = folder / "good.jpg"
    Image.fromarray(halves()).save(good)
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "truncated.jpg").write_bytes(good.read_bytes()[:-200])
    (folder / "text.png").write_text("no picture")
    (folder / "dangling.jpg").symlink_to("gone.jpg")
    (folder / "loop.jpg").symlink_to("loop.jpg")
    (folder / "folder.jpg").mkdir()
    os.mkfifo(folder / "pipe.jpg")
    return {
        "empty.jpg": "the file is empty",
        "truncated.jpg": "runcated",
        "text.png": "of no known kind, or damaged",
        "dangling.jpg": "is a link to a file that does not exist",
        "loop.jpg": "symbolic links",
        "folder.jpg": "is a folder",
        "pipe.jpg": "is no plain file",
        "gone.jpg": "does not exist",
    }


@pytest.mark.timeout(30)
def test_what_is_a_picture_by_name_alone_is_told_and_never_waited_for(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for name, words in bad_files(tmp_path).items():
        with subtests.test(name), pytest.raises(PictureError, match=f"{name}.*{words}"):
            load_picture(tmp_path / name, 8)


def test_a_file_nobody_may_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.fromarray(halves()).save(tmp_path / "a.png")

    def closed(self: Path, *args: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", closed)
    with pytest.raises(PictureError, match=r"a\.png cannot be read \(Permission denied\)"):
        load_picture(tmp_path / "a.png", 8)


def heic(path: Path) -> Path:
    pillow_heif = pytest.importorskip("pillow_heif")
    pillow_heif.from_pillow(Image.fromarray(halves(64, 64))).save(path, quality=95)
    return path


@pytest.mark.parametrize("name", ["a.heic", "really-heic.jpg"])
def test_heic_is_read_by_its_content(tmp_path: Path, name: str) -> None:
    whole = heic(tmp_path / "whole.heic")
    pixels = load_picture(whole.rename(tmp_path / name), 16).astype(int)
    assert np.abs(pixels - load_picture(halves(64, 64), 16)).mean() < 20


def test_heic_without_its_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = heic(tmp_path / "a.HEIC")
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(PictureError, match=r"a\.HEIC is HEIC, .* `pip install 'siglum\[heic\]'`\."):
        load_picture(path, 16)
    monkeypatch.undo()
    assert load_picture(path, 16).shape == (16, 16, 3)
