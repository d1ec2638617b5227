"""Forms (multipart/form-data) that are in memory as a whole: their parts, by name."""

from __future__ import annotations

import re
from dataclasses import dataclass

from siglum.serve.errors import ServiceError

PARTS = 1000
"""Parts a form may have."""
_BOUNDARY = re.compile(rb'boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))', re.I)
_NAME = re.compile(rb'[;\s]name="([^"]{0,200})"', re.I)
_FILE = re.compile(rb"[;\s]filename\*?=", re.I)


@dataclass(frozen=True, slots=True)
class FormPart:
    """One part of a form."""

    name: str
    content: bytes
    is_file: bool


def read_form(kind: str, content: bytes) -> list[FormPart]:
    r"""Return the parts of a form, in the order in which they came.

    >>> body = b'--x\r\nContent-Disposition: form-data; name="k"\r\n\r\n3\r\n--x--\r\n'
    >>> [(part.name, part.content) for part in read_form("multipart/form-data; boundary=x", body)]
    [('k', b'3')]
    """
    found = _BOUNDARY.search(kind.encode("latin-1", "replace"))
    if found is None:
        raise _broken("its boundary is not told")
    mark = b"\r\n--" + (found[1] or found[2])
    # Before the first mark, and behind the last, there may be words that count for nothing.
    pieces = (b"\r\n" + content).split(mark, PARTS + 2)
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise _broken(f"it has more than {PARTS} parts" if len(pieces) > PARTS + 1 else "it does not end")
    return [_part(piece) for piece in pieces[1:-1]]


def _part(piece: bytes) -> FormPart:
    line, _, rest = piece.partition(b"\r\n")
    head, blank, content = (b"\r\n" + rest).partition(b"\r\n\r\n")
    name = _NAME.search(head)
    if line.strip() or not blank or name is None:
        raise _broken("a part has no name")
    try:
        return FormPart(name[1].decode(), content, _FILE.search(head) is not None)
    except UnicodeDecodeError:
        raise _broken("the name of a part is not UTF-8") from None


def _broken(why: str) -> ServiceError:
    return ServiceError("bad_request", f"the form cannot be read ({why}); send multipart/form-data as clients do.")
