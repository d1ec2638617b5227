"""Pictures as square uint8 pixels, whether they come from a file, an array or a drawing."""

# Shapes: N pictures asked for, M readable ones, S side of the square.

from __future__ import annotations

import os
import stat
import sys
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeGuard

import numpy as np

from siglum.types import Drawing, Picture, SiglumError, one_of

if TYPE_CHECKING:
    from PIL.Image import Image

DEEP_GREY = ("I", "I;16", "I;16B", "I;16L", "I;16N")
"""Pillow's names for grey pictures of 16 bits."""
FRAMINGS = ("whole", "centre")
"""Resized to the square without cropping, or the shorter side resized and the centre square cut out, as CLIP does."""
HEIC = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
"""The brands by which a HEIF file says what it is, after `ftyp`; a phone may call it anything."""
STRIP = 8
"""A picture this many times longer than wide loses its ends before it is resized, which bounds memory."""


class PictureError(SiglumError):
    """A picture that cannot be read; the message names it."""


def load_picture(picture: Picture, size: int, framing: str = "whole") -> np.ndarray:
    """Return a picture as uint8 (size, size, 3), resized bicubically and framed as one of `FRAMINGS` says.

    Files, bytes and PIL images are turned as their EXIF data says and brought to RGB; transparent parts become white.
    An array that already has the right size is returned as it is.

    >>> load_picture(np.zeros((2, 3, 3), np.uint8), 4).shape
    (4, 4, 3)
    """
    if size < 1:
        raise SiglumError(f"the picture size is {size}, but must be at least 1.")
    one_of("framing", framing, FRAMINGS)
    if isinstance(picture, str | Path):
        return _load_file(Path(picture), size, framing)
    if isinstance(picture, bytes):
        with _telling("the picture given as bytes"):
            return _read(BytesIO(picture), "the picture given as bytes", size, framing)
    if isinstance(picture, np.ndarray):
        return _resize_array(picture, size, framing)
    if is_image(picture):
        with _telling("the PIL image"):
            _refuse_large(picture, "the PIL image")
            return _frame(picture, size, framing)
    if isinstance(picture, Drawing):
        return _checked(picture.pixels(size), f"the drawing {type(picture).__name__}", size)
    raise SiglumError(
        f"a picture must be a path, bytes, a PIL image, an array or a drawing, but this is a {type(picture).__name__}."
    )


def make_jpeg(picture: bytes, side: int) -> bytes:
    """Return a picture in its own proportions, at most `side` pixels a side, as a JPEG without anything beside it."""
    from PIL import Image
    from PIL.ImageOps import exif_transpose

    what, file = "the picture given as bytes", BytesIO()
    with _telling(what):
        _prepare(source := BytesIO(picture), what)
        with Image.open(source) as image:
            _refuse_large(image, what)
            image.draft(None, (2 * side, 2 * side))
            small = _to_rgb(exif_transpose(image))
        small.thumbnail((side, side), Image.Resampling.BICUBIC)
        small.save(file, "JPEG", quality=85, optimize=True)
    return file.getvalue()


def is_image(value: object) -> TypeGuard[Image]:
    """Return whether a value is a PIL image; where Pillow was never imported, none is."""
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(value, pillow.Image)


def file_of(picture: object) -> Path | None:
    """Return the file that a picture is read from, as far as it is known: that of a PIL image may be."""
    name = getattr(picture, "filename", None) if is_image(picture) else picture
    return Path(name) if isinstance(name, str | Path) and str(name) else None


def stream_pictures(
    pictures: Iterable[Picture | None], size: int, framing: str = "whole", *, workers: int = 1, ahead: int = 512
) -> Generator[np.ndarray | PictureError | None]:
    """Yield every picture in order: its pixels, the error if it cannot be read, None where there is none.

    Threads decode at most `ahead` pictures before they are asked for, so that memory stays bounded. Pillow lets go of
    the interpreter while it decodes and resizes: up to eight threads do as much as processes, more gain little.
    """

    def load(picture: Picture | None) -> np.ndarray | PictureError | None:
        try:
            return None if picture is None else load_picture(picture, size, framing)
        except PictureError as error:
            return error

    if workers <= 1:
        yield from map(load, pictures)
        return
    pool = ThreadPoolExecutor(workers)
    try:
        waiting: deque[Future[np.ndarray | PictureError | None]] = deque()
        for picture in pictures:
            waiting.append(pool.submit(load, picture))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _load_file(path: Path, size: int, framing: str) -> np.ndarray:
    what = f"the picture {path}"
    try:
        with _telling(what):
            # Opening a pipe would wait for whoever writes it, perhaps for ever.
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise PictureError(f"{what} is {'a folder' if path.is_dir() else 'no plain file'}.")
            with path.open("rb") as file:
                return _read(file, what, size, framing)
    except FileNotFoundError as error:
        why = "is a link to a file that does not exist" if path.is_symlink() else "does not exist"
        raise PictureError(f"{what} {why}.") from error


@contextmanager
def _telling(what: str) -> Iterator[None]:
    """Say in one sentence that a picture cannot be read: Pillow's decoders raise almost anything on a damaged one."""
    from PIL import UnidentifiedImageError

    try:
        yield
    except (PictureError, FileNotFoundError):
        raise
    except UnidentifiedImageError as error:
        raise PictureError(f"{what} cannot be read (of no known kind, or damaged).") from error
    except Exception as error:  # SyntaxError included
        told = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"
        raise PictureError(f"{what} cannot be read ({told}).") from error


def _read(file: IO[bytes], what: str, size: int, framing: str) -> np.ndarray:
    """Decode an open file."""
    from PIL import Image

    _prepare(file, what)
    with Image.open(file) as image:
        _refuse_large(image, what)
        # A large JPEG is decoded at a fraction of its size; twice the target leaves the resize enough.
        image.draft(None, (2 * size, 2 * size))
        return _frame(image, size, framing)


def _refuse_large(image: Image, what: str) -> None:
    """Refuse a picture so large that it may be made to exhaust memory, before it is decoded."""
    from PIL.Image import MAX_IMAGE_PIXELS as most

    pixels = image.width * image.height
    if most and pixels > most:
        raise PictureError(f"{what} has {pixels} pixels, above the limit of {most}; shrink it.")


def _frame(image: Image, size: int, framing: str) -> np.ndarray:
    """Turn a picture upright, bring it to RGB and make a square of it."""
    from PIL.ImageOps import exif_transpose

    return _to_square(_to_rgb(exif_transpose(image)), size, framing)


def _prepare(file: IO[bytes], what: str) -> None:
    """Teach Pillow HEIF when the first such file is met, or say what is missing for it."""
    head = file.read(12)
    file.seek(0)
    if not head:
        raise PictureError(f"{what} cannot be read (the file is empty).")
    if head[4:8] == b"ftyp" and head[8:] in HEIC:
        try:
            from pillow_heif import register_heif_opener
        except ImportError as error:
            raise PictureError(
                f"{what} is HEIC, which needs the package pillow-heif; install it with `pip install 'siglum[heic]'`."
            ) from error
        register_heif_opener()


def _to_rgb(image: Image) -> Image:
    from PIL import Image

    if image.mode in DEEP_GREY:
        # Pillow would cut every value above 255 to white.
        image = Image.fromarray((np.asarray(image).clip(0, 65535) / 257).round().astype(np.uint8))
    if image.mode == "F":
        raise ValueError("floating-point pixels of unknown range")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    return image.convert("RGB")


def _to_square(image: Image, size: int, framing: str) -> np.ndarray:
    from PIL.Image import Resampling

    if framing == "whole":
        return np.array(image.resize((size, size), Resampling.BICUBIC))
    short = min(image.size)
    if max(image.size) > STRIP * short:
        image = _cut_centre(image, min(image.width, STRIP * short), min(image.height, STRIP * short))
    width, height = (size if side == short else size * side // short for side in image.size)
    return np.array(_cut_centre(image.resize((width, height), Resampling.BICUBIC), size, size))


def _cut_centre(image: Image, width: int, height: int) -> Image:
    left, top = round((image.width - width) / 2), round((image.height - height) / 2)
    return image.crop((left, top, left + width, top + height))


def _resize_array(pixels: np.ndarray, size: int, framing: str) -> np.ndarray:
    _checked(pixels, "the picture array")
    if pixels.shape[:2] == (size, size):
        return pixels
    from PIL import Image

    return _to_square(Image.fromarray(np.ascontiguousarray(pixels)), size, framing)


def _checked(pixels: np.ndarray, what: str, size: int | None = None) -> np.ndarray:
    wanted = "height, width" if size is None else f"{size}, {size}"
    right = pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.shape[2] == 3 and pixels.size > 0
    if not right or (size is not None and pixels.shape[:2] != (size, size)):
        raise PictureError(f"{what} is {pixels.dtype} {pixels.shape}, but must be uint8 ({wanted}, 3).")
    return pixels
