"""The log of an index: what was added and removed, appended record by record, each with its length and checksum.

A file begins with a line that names the index it belongs to. A record is one call, whole or not there at all:

    length of the body (8 bytes), its CRC-32 (4), the CRC-32 of these 12 bytes (4), then the body:
    operation (1: add, 2: remove, 3: both; with fields 4 more), width W of a vector (4), numbers D of items removed (4)
    and M of items added (4), bytes of the ids (8), the length of each id (4 (D + M)), the ids in UTF-8, the packed
    codes (B M), the vectors in half precision (2 W M); with fields, the length of each (4 M), the fields in UTF-8

Beside the log lies how many of its bytes were acknowledged (`.ack`): what is torn behind them was never acknowledged
and is cut; what is torn before them is damage, and refused.
"""

from __future__ import annotations

import json
import logging
import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from siglum.checks import BINARY
from siglum.files import sync_folder
from siglum.tensors import ids_from_arrays
from siglum.types import SiglumError

ADD, REMOVE, FIELDS = 1, 2, 4
"""Operations, both of which together replace items, and the mark of records with fields."""
FRAME = struct.Struct("<QII")
BODY = struct.Struct("<BIIIQ")
ACK = struct.Struct("<QI")
CLOSED = -1
"""The number of a file that is not open."""
_log = logging.getLogger("siglum")


@dataclass(frozen=True, slots=True)
class Record:
    """One call: ids that were removed, and then items that were added."""

    gone: Sequence[str]
    ids: Sequence[str]
    packed_MB: np.ndarray
    """Packed codes in the order of the ids, uint8 (M, B)."""
    vectors_MD: np.ndarray
    """Kept vectors, float16 (M, W); W is 0 where none are kept."""
    fields: Sequence[str] = ()
    """What is kept to show of each item; nothing, or one of each id."""

    def __len__(self) -> int:
        return len(self.gone) + len(self.ids)

    def encoded(self) -> bytes:
        """Return the record as it stands in the log, frame and body."""
        fields = _joined(self.fields) if any(self.fields) else b""
        operation = ADD * bool(self.ids) + REMOVE * bool(self.gone) + FIELDS * bool(fields)
        names = _joined([*self.gone, *self.ids])
        counts = len(self.gone), len(self.ids)
        head = BODY.pack(operation, self.vectors_MD.shape[1], *counts, len(names) - 4 * sum(counts))
        body = b"".join([head, names, self.packed_MB.tobytes(), self.vectors_MD.astype("<f2").tobytes(), fields])
        frame = struct.pack("<QI", len(body), zlib.crc32(body))
        return frame + struct.pack("<I", zlib.crc32(frame)) + body

    @classmethod
    def decoded(cls, body: memoryview, row_bytes: int) -> Record:
        """Return the record of a body whose checksum is right."""
        operation, width, gone, count, size = BODY.unpack_from(body)
        counts = (4 * (gone + count) + size, row_bytes * count, 2 * width * count)
        ends = np.cumsum((BODY.size, *counts)).tolist()
        blob, packed, vectors = (body[start:end] for start, end in zip(ends, ends[1:], strict=False))
        fields, has_fields = body[ends[-1] :], bool(operation & FIELDS)
        if operation & ~FIELDS not in (ADD, REMOVE, ADD + REMOVE) or len(body) < ends[-1] or bool(fields) != has_fields:
            raise SiglumError("a record of the log has another shape than this version writes.")
        names = _parted(blob, gone + count)
        return cls(
            names[:gone],
            names[gone:],
            np.frombuffer(packed, np.uint8).reshape(count, row_bytes),
            np.frombuffer(vectors, "<f2").reshape(count, width),
            _parted(fields, count) if has_fields else (),
        )


def _joined(strings: Sequence[str]) -> bytes:
    """Return the lengths of strings, and the strings in UTF-8."""
    blobs = [string.encode() for string in strings]
    return np.array([len(blob) for blob in blobs], "<u4").tobytes() + b"".join(blobs)


def _parted(content: memoryview, count: int) -> list[str]:
    """Return the strings that `_joined` joined."""
    lengths = np.frombuffer(content[: 4 * count], "<u4")
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
    return ids_from_arrays(np.frombuffer(content[4 * count :], np.uint8), offsets)


@dataclass(slots=True)
class Journal:
    """What a log holds."""

    path: Path
    records: list[Record] = field(default_factory=list)
    end: int = 0
    """Bytes up to the end of the last whole record."""
    torn: int = 0
    """Bytes behind it, of a record that was never acknowledged."""
    is_sound: bool = True
    """Whether it can be told how much was acknowledged."""


def log_path(folder: Path, number: int) -> Path:
    """Return where a log lies."""
    return folder / f"log-{number:06d}"


def ack_path(path: Path) -> Path:
    """Return where it stands how much of a log was acknowledged."""
    return path.with_name(path.name + ".ack")


def header(lineage: str, number: int) -> bytes:
    """Return the first line of a log of the index with this lineage."""
    text = json.dumps({"log": number, "index": lineage}, sort_keys=True).encode()
    return b"siglum log 1 " + text + f" {zlib.crc32(text):08x}\n".encode()


def read_journal(folder: Path, number: int, lineage: str, row_bytes: int) -> Journal:
    """Return the whole records of a log, refusing one that is damaged or of another index."""
    path = log_path(folder, number)
    first = header(lineage, number)
    # Asked first: a record that is appended meanwhile is behind what was acknowledged.
    acknowledged = acknowledged_ends(path, first)
    sure = max(acknowledged, default=0)
    try:
        content = memoryview(path.read_bytes())
    except OSError as error:
        raise SiglumError(f"{path} cannot be read ({error.strerror or error}).") from error
    # A log is begun before its acknowledgement, which may have come meanwhile.
    is_sound = len(acknowledged) == 2 or len(content) <= len(first) or len(acknowledged_ends(path, first)) == 2
    if not is_sound:
        said = "%s is missing or damaged: a torn end of the log cannot be told from a damaged one."
        _log.warning(said, ack_path(path))
    if content[: len(first)] != first:
        if len(content) < len(first) and first.startswith(content) and not sure:
            return Journal(path, torn=len(content), is_sound=is_sound)  # begun, and not a record in it
        raise SiglumError(
            f"{path} is damaged, or the log of another index; put it back, or give it up, and those that follow, with"
            " `siglum index RUN --cut-log`."
        )
    journal = Journal(path, end=len(first), is_sound=is_sound)
    while (body := _next(content, journal.end)) is not None:
        journal.records.append(Record.decoded(body, row_bytes))
        journal.end += FRAME.size + len(body)
    journal.torn = len(content) - journal.end
    if journal.end < sure or not _is_torn(content, journal.end):
        raise SiglumError(
            f"{path} is damaged at byte {journal.end:,}, behind {len(journal.records)} whole records, where others were"
            " acknowledged; put it back, or give up what follows with `siglum index RUN --cut-log`."
        )
    return journal


def _next(content: memoryview, start: int) -> memoryview | None:
    """Return the body of the record that begins here, or None where there is no whole one."""
    if len(content) - start < FRAME.size:
        return None
    size, checksum, own = FRAME.unpack_from(content, start)
    if zlib.crc32(content[start : start + FRAME.size - 4]) != own:
        return None
    body = content[start + FRAME.size : start + FRAME.size + size]
    return body if len(body) == size and zlib.crc32(body) == checksum else None


def _is_torn(content: memoryview, end: int) -> bool:
    """Return whether what follows the last whole record is at most one record that was not written to its end."""
    rest = content[end:]
    if len(rest) < FRAME.size or not any(rest):  # a file may have grown before its bytes came
        return True
    size, _, own = FRAME.unpack_from(rest)
    is_frame: bool = zlib.crc32(rest[: FRAME.size - 4]) == own
    return is_frame and len(rest) <= int(FRAME.size + size)


def acknowledged_ends(path: Path, first: bytes) -> list[int]:
    """Return what the two places of the acknowledgement of a log that begins so say, without those that are damaged."""
    place = ack_path(path)
    try:
        content = place.read_bytes()
    except FileNotFoundError:
        content = b""
    except OSError as error:
        raise SiglumError(f"{place} cannot be read ({error.strerror or error}).") from error
    whole = [part for part in (content[: ACK.size], content[ACK.size :]) if len(part) == ACK.size]
    return [ACK.unpack(part)[0] for part in whole if part == _acknowledgement(ACK.unpack(part)[0], first)]


def _acknowledgement(end: int, first: bytes) -> bytes:
    """Return what says that so many bytes of the log that begins so were acknowledged."""
    length = struct.pack("<Q", end)
    return length + struct.pack("<I", zlib.crc32(first + length))


def whole_records(content: bytes, first: bytes) -> tuple[int, int]:
    """Return the end of the last whole record of a log, and how many there are; 0 where it does not begin so."""
    if not content.startswith(first):
        return 0, 0
    view, end, count = memoryview(content), len(first), 0
    while (body := _next(view, end)) is not None:
        end, count = end + FRAME.size + len(body), count + 1
    return end, count


class JournalWriter:
    """Appends records to a log; `sync` makes them last and acknowledges them."""

    def __init__(self, path: Path, end: int) -> None:
        """Go on behind the first `end` bytes; what follows them is cut."""
        self.path, self.end = path, end
        self.is_broken = False
        """Whether half a record may stand behind the last whole one."""
        with path.open("rb") as file:
            self._first = file.readline(4096)
        self._turn = 0
        self._file = self._ack = CLOSED
        try:
            self._file = os.open(path, os.O_RDWR | BINARY)
            self._ack = os.open(ack_path(path), os.O_RDWR | os.O_CREAT | BINARY, 0o644)
            os.ftruncate(self._file, end)
            os.ftruncate(self._ack, 2 * ACK.size)
            self.sync(end)
            self.sync(end)  # both places of the acknowledgement
            os.fsync(self._ack)
        except OSError:
            self.close()
            raise

    @classmethod
    def go_on(cls, path: Path, end: int) -> JournalWriter:
        """Open a log behind its first `end` bytes."""
        try:
            return cls(path, end)
        except OSError as error:
            raise SiglumError(f"could not open {path} for writing: {error.strerror or error}.") from error

    @classmethod
    def create(cls, folder: Path, number: int, lineage: str) -> JournalWriter:
        """Begin a log; if that fails, there is none."""
        path, first = log_path(folder, number), header(lineage, number)
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | BINARY, 0o644)
            try:
                _write_all(handle, first, 0)
                os.fsync(handle)
            finally:
                os.close(handle)
            sync_folder(folder)  # before there is an acknowledgement, which would tell of a log that is gone
            writer = cls(path, len(first))
            sync_folder(folder)
        except (OSError, SiglumError) as error:
            for left in (ack_path(path), path):
                left.unlink(missing_ok=True)
            reason = error.strerror or error if isinstance(error, OSError) else str(error).rstrip(".")
            raise SiglumError(f"could not begin {path}: {reason}; nothing was changed.") from error
        return writer

    def append(self, content: bytes) -> int:
        """Write a record behind the others and return where it ends; if that fails, the log is as it was."""
        self._refuse_closed()
        try:
            _write_all(self._file, content, self.end)
        except BaseException:  # an interrupt may come in the middle, too
            self.is_broken = True
            os.ftruncate(self._file, self.end)
            self.is_broken = False
            raise
        self.end += len(content)
        return self.end

    def sync(self, end: int) -> None:
        """Wait until the first `end` bytes are on the disk, and acknowledge them."""
        self._refuse_closed()
        os.fsync(self._file)
        # Two places in turn: one of them is whole whenever the other is being written. Not synced itself: what it
        # does not tell yet after a loss of power is only less to compare with.
        _write_all(self._ack, _acknowledgement(end, self._first), self._turn * ACK.size)
        self._turn = 1 - self._turn

    def _refuse_closed(self) -> None:
        if CLOSED in (self._file, self._ack):
            raise SiglumError(f"{self.path} is closed; open the index again.")

    def close(self) -> None:
        """Close the files, once: their numbers may be those of other files by the next time."""
        open_files = [handle for handle in (self._file, self._ack) if handle != CLOSED]
        self._file = self._ack = CLOSED
        for handle in open_files:
            os.close(handle)


def _write_all(handle: int, content: bytes, start: int) -> None:
    os.lseek(handle, start, os.SEEK_SET)
    view = memoryview(content)
    while view:
        view = view[os.write(handle, view) :]
