"""Pictures as square uint8 pixels, whether they come from a file, an array or a drawing."""

# Shapes: N pictures asked for, M readable ones, S side of the square.

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from siglum.types import Drawing, Picture, SiglumError, one_of

if TYPE_CHECKING:
    from PIL.Image import Image

DEEP_GREY = ("I", "I;16", "I;16B", "I;16L", "I;16N")
"""Pillow's names for grey pictures of 16 bits."""
FRAMINGS = ("whole", "centre")
"""Resized to the square without cropping, or the shorter side resized and the centre square cut out, as CLIP does."""
STRIP = 8
"""A picture this many times longer than wide loses its ends before it is resized, which bounds memory."""


class PictureError(SiglumError):
    """A picture that cannot be read; the message names it."""


def load_picture(picture: Picture, size: int, framing: str = "whole") -> np.ndarray:
    """Return a picture as uint8 (size, size, 3), resized bicubically and framed as one of `FRAMINGS` says.

    Files are turned as their EXIF data says and brought to RGB; transparent parts become white. An array that
    already has the right size is returned as it is.

    >>> load_picture(np.zeros((2, 3, 3), np.uint8), 4).shape
    (4, 4, 3)
    """
    if size < 1:
        raise SiglumError(f"the picture size is {size}, but must be at least 1.")
    one_of("framing", framing, FRAMINGS)
    if isinstance(picture, str | Path):
        return _load_file(Path(picture), size, framing)
    if isinstance(picture, np.ndarray):
        return _resize_array(picture, size, framing)
    if isinstance(picture, Drawing):
        return _checked(picture.pixels(size), f"the drawing {type(picture).__name__}", size)
    raise SiglumError(f"a picture must be a path, an array or a drawing, but this is a {type(picture).__name__}.")


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


def load_pictures(
    pictures: Sequence[Picture], size: int, strict: bool, framing: str = "whole"
) -> tuple[np.ndarray, np.ndarray]:
    """Return the readable pictures, uint8 (M, size, size, 3), and which of all they are, bool (N,) with M true.

    With `strict` the first unreadable picture raises instead of being skipped.
    """
    pixels_NSS3 = np.empty((len(pictures), size, size, 3), np.uint8)
    ok_N = np.zeros(len(pictures), bool)
    loaded = 0
    for place, picture in enumerate(pictures):
        try:
            pixels_NSS3[loaded] = load_picture(picture, size, framing)
        except PictureError:
            if strict:
                raise
            continue
        ok_N[place] = True
        loaded += 1
    return pixels_NSS3[:loaded], ok_N


def _load_file(path: Path, size: int, framing: str) -> np.ndarray:
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as image:
            pixels = image.width * image.height
            if Image.MAX_IMAGE_PIXELS and pixels > Image.MAX_IMAGE_PIXELS:
                raise PictureError(
                    f"{path} has {pixels} pixels, above the limit of {Image.MAX_IMAGE_PIXELS}; shrink it."
                )
            # A large JPEG is decoded at a fraction of its size; twice the target leaves the resize enough to work on.
            image.draft(None, (2 * size, 2 * size))
            upright = ImageOps.exif_transpose(image)
            return _to_square(_to_rgb(upright), size, framing)
    except PictureError:
        raise
    except FileNotFoundError as error:
        raise PictureError(f"the picture {path} does not exist.") from error
    except Exception as error:  # Pillow's decoders raise almost anything on a damaged file, SyntaxError included.
        raise PictureError(f"the picture {path} cannot be read ({type(error).__name__}: {error}).") from error


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
