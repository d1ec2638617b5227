"""The process that decodes pictures of strangers: what goes wrong there takes nothing down but itself.

It reads requests on stdin and writes answers on stdout, one after another. A request is a header (`HEADER`: what to
make, its side in pixels, the framing, the bytes that follow) and the picture's bytes; an answer is a status byte, a
length and that many bytes: uint8 pixels (side, side, 3) or a JPEG, or a sentence that says what is wrong.
"""

from __future__ import annotations

import struct
import sys
from contextlib import suppress

from siglum.data.pictures import FRAMINGS, PictureError, load_picture, make_jpeg

HEADER = struct.Struct("<BIBQ")
ANSWER = struct.Struct("<BQ")
PIXELS, JPEG = 0, 1
FINE, REFUSED = 0, 1
MEMORY = 3 << 30
"""Bytes of address space the process may have."""


def make(kind: int, side: int, framing: int, content: bytes) -> tuple[int, bytes]:
    """Return the status and the bytes of an answer."""
    try:
        if kind == PIXELS:
            return FINE, load_picture(content, side, FRAMINGS[framing]).tobytes()
        return FINE, make_jpeg(content, side)
    except PictureError as error:
        return REFUSED, str(error).replace("the picture given as bytes", "the picture").encode()
    except MemoryError:
        return REFUSED, b"the picture needs more memory than a picture is given; shrink it."


def main(max_pixels: int) -> None:
    """Answer requests until stdin ends."""
    import PIL.Image

    PIL.Image.MAX_IMAGE_PIXELS = max_pixels
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    source, to = sys.stdin.buffer, sys.stdout.buffer
    while len(head := source.read(HEADER.size)) == HEADER.size:
        kind, side, framing, size = HEADER.unpack(head)
        status, answer = make(kind, side, framing, source.read(size))
        to.write(ANSWER.pack(status, len(answer)))
        to.write(answer)
        to.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
