"""One entry of the frame cache: a safetensors file with the frames of one clip, its clock and a checksum.

    8 bytes          length of the header, little endian
    header           JSON, blanks at its end: `__metadata__` (crc32, format, codec, shape, clip) and the tensors
    data, raw        `frames` uint8 [T, 3, H, W]
    data, jpeg       `data` uint8 [N]: T JPEG files in a row, zeros up to a multiple of 8; `offsets` int64 [T + 1] of them

The header comes first in the file and is known last, so a writer leaves room for the longest one that its plan allows, streams the
frames behind it and fills it in at the end. The checksum is over the data and the rest of the header, so a changed time is found like
a changed pixel. A file appears under its name only when it is complete and on the disk.
"""

from __future__ import annotations

import errno
import io
import json
import math
import os
import secrets
import socket
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, cast

if TYPE_CHECKING:
    import numpy as np

Codec = Literal["raw", "jpeg"]

FORMAT = 2
"""Version of the layout. Entries of another version are misses."""

JPEG_QUALITY = 95
"""With full chroma resolution; docs/cache.md has the measurements that chose it."""

UNFINISHED = ".writing-*.tmp"
"""What the files of writers that are at work, or were killed, are called."""

_FIELDS = (
    "times", "indices", "source_fps", "source_frames", "duration", "span", "rotation", "decoder", "content_hash", "key", "kind", "missing",
)  # fmt: skip
_BEGIN = b'{"__metadata__": {"crc32": "'
_MAX_HEADER = 64 * 2**20


def entry_path(directory: Path, key: str) -> Path:
    return Path(directory) / key[:2] / f"{key}.safetensors"


def unfinished(directory: Path) -> Path:
    """A name that no other writer uses, on whatever host; it says whose it is."""
    return directory / f".writing-{socket.gethostname()[:64]}-{os.getpid()}-{secrets.token_hex(6)}.tmp"


class EntryWriter:
    """Writes one entry, frame by frame: memory holds one frame. Leaving it without `commit` discards what was written.

    `shape` is the plan [T, 3, H, W]; fewer frames than T may come. Raises OSError where the system refuses (disk full, no permission).
    Any number of writers, on any number of hosts, may write the same key at a time: each has a file of its own (`temporary`, a name by
    `unfinished`), the last one stays.
    """

    def __init__(
        self, directory: Path, key: str, shape: tuple[int, int, int, int], codec: Codec = "raw", temporary: Path | None = None
    ) -> None:  # fmt: skip
        if len(shape) != 4 or shape[1] != 3 or min(shape) < 1:
            raise ValueError(f"an entry holds [T, 3, H, W] frames, not {list(shape)}")
        self.path = entry_path(directory, key)
        self.key, self.shape = key, shape
        self.codec: Codec = codec
        self._offset = _room(shape[0])
        self._ends = [0]
        """Bytes of data after each frame."""
        self._crc = 0
        self._descriptor = -1
        self._name = temporary or unfinished(self.path.parent)
        self._temporary: Path | None = None

    def __enter__(self) -> EntryWriter:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # 0o666 less the umask, so that a team can share a cache; tempfile would give 0o600.
        self._descriptor = os.open(self._name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._temporary = self._name
        os.lseek(self._descriptor, self._offset, os.SEEK_SET)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
        if self._temporary is not None:
            self._temporary.unlink(missing_ok=True)

    def add(self, frame: np.ndarray) -> None:
        """The next frame, uint8 [3, H, W]."""
        import numpy as np

        if frame.dtype != np.uint8 or frame.shape != self.shape[1:] or len(self._ends) > self.shape[0]:
            raise ValueError(f"frame {len(self._ends)} of {list(self.shape)}: {frame.dtype} {list(frame.shape)} does not fit")
        self._write(_encode(frame) if self.codec == "jpeg" else np.ascontiguousarray(frame).reshape(-1).data)

    def commit(self, meta: Mapping[str, Any]) -> int:
        """Complete the entry and return its bytes. `meta` holds the fields of the clip, for the frames that were added."""
        count = len(self._ends) - 1
        if not count or len(meta["times"]) != count or len(meta["indices"]) != count or meta["key"] != self.key:
            raise ValueError(f"{count} frames were added, the clock has {len(meta['times'])} times and {len(meta['indices'])} indices")
        offsets = self._ends
        size = offsets[-1]
        if self.codec == "jpeg":
            size = offsets[-1] + -offsets[-1] % 8
            self._write(bytes(size - offsets[-1]) + b"".join(end.to_bytes(8, "little") for end in offsets))
        self._write_header(_header((count, *self.shape[1:]), self.codec, size, {name: meta[name] for name in _FIELDS}))
        os.fsync(self._descriptor)
        os.replace(cast(Path, self._temporary), self.path)
        self._temporary = None
        _sync_directory(self.path.parent)
        return os.fstat(self._descriptor).st_size

    def _write(self, data: bytes | memoryview) -> None:
        left = memoryview(data)
        self._crc = zlib.crc32(left, self._crc)
        self._ends.append(self._ends[-1] + len(left))
        while left:
            left = left[os.write(self._descriptor, left) :]

    def _write_header(self, rest: bytes) -> None:
        room = self._offset - 8 - len(_BEGIN) - 8
        if len(rest) > room:
            raise ValueError(f"the header of {self.key} takes {len(rest)} bytes, there is room for {room}")
        rest = rest.ljust(room)
        checksum = f"{zlib.crc32(rest, self._crc):08x}".encode()
        os.pwrite(self._descriptor, (self._offset - 8).to_bytes(8, "little") + _BEGIN + checksum + rest, 0)


@dataclass(frozen=True, slots=True)
class Entry:
    """The header of an entry."""

    shape: tuple[int, int, int, int]
    codec: Codec
    clip: dict[str, Any]
    """The fields of the clip beside its frames."""
    offset: int
    """Where the data begins."""
    size: int
    """Bytes of data."""
    crc32: int
    rest: bytes
    """What the checksum covers after the data."""

    @property
    def key(self) -> str:
        return self.clip["key"]


def read_entry(file: BinaryIO) -> Entry:
    """The header of an open entry, its size compared with the file's. Raises ValueError with the reason when it is not a valid one."""
    length = int.from_bytes(file.read(8), "little")
    if not len(_BEGIN) < length <= _MAX_HEADER:
        raise ValueError("no header of an entry")
    text = file.read(length)
    if not text.startswith(_BEGIN) or len(text) != length:
        raise ValueError("no header of an entry, or one of another format")
    rest = text[len(_BEGIN) + 8 :]
    try:
        entry = _parse(json.loads(text), 8 + length, rest)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"a damaged header, or one of another format ({error})") from error
    held = os.fstat(file.fileno()).st_size
    if held != entry.offset + entry.size:
        raise ValueError(f"{held} bytes, the header says {entry.offset + entry.size}")
    return entry


def map_data(file: BinaryIO, entry: Entry) -> np.ndarray:
    """uint8 [size]: the data of an open entry, mapped. Writes to it stay in memory: torch wants an array that can be written to."""
    import numpy as np

    return np.memmap(file, np.uint8, "c", entry.offset, (entry.size,)).view(np.ndarray)


def intact(entry: Entry, data: np.ndarray) -> bool:
    """Whether data and header agree with the checksum."""
    return zlib.crc32(entry.rest, zlib.crc32(data.data)) == entry.crc32


def frames_of(entry: Entry, data: np.ndarray, threads: int = 1) -> np.ndarray:
    """uint8 [T, 3, H, W] from the data of an entry: the mapped bytes themselves, or decoded. Raises ValueError: a frame doesn't decode."""
    import numpy as np

    if entry.codec == "raw":
        return data.reshape(entry.shape)
    offsets = data[entry.size - 8 * (entry.shape[0] + 1) :].view("<i8")
    frames = np.empty(entry.shape, np.uint8)

    def one(place: int) -> None:
        _decode(data[offsets[place] : offsets[place + 1]], frames[place])

    if min(threads, len(frames)) == 1:
        for place in range(len(frames)):
            one(place)
        return frames
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(one, range(len(frames))))
    return frames


def as_stored(frames: np.ndarray, codec: Codec) -> np.ndarray:
    """uint8 [T, 3, H, W]: what reading an entry of these frames would give."""
    import numpy as np

    if codec == "jpeg":
        frames = frames.copy()
        for frame in frames:
            _decode(np.frombuffer(_encode(frame), np.uint8), frame)
    return frames


def _room(frames: int) -> int:
    """Where data begins: behind the longest header that so many frames can have. Data on a multiple of 64 lies on a cache line."""
    longest = 24 + 20 + 4  # a float and an integer as text, two separators each
    used = 8 + len(_BEGIN) + 4096 + frames * longest
    return used + -used % 64


def _header(shape: tuple[int, ...], codec: Codec, size: int, clip: dict[str, Any]) -> bytes:
    """The header behind its checksum, without the blanks."""
    tensors: dict[str, Any] = {"frames": {"dtype": "U8", "shape": shape, "data_offsets": [0, size]}}
    if codec == "jpeg":
        tensors = {
            "data": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]},
            "offsets": {"dtype": "I64", "shape": [shape[0] + 1], "data_offsets": [size, size + 8 * (shape[0] + 1)]},
        }
    metadata = {"format": str(FORMAT), "codec": codec, "shape": json.dumps(shape), "clip": json.dumps(clip)}
    return f'", {json.dumps(metadata)[1:]}, {json.dumps(tensors)[1:]}'.encode()


def _parse(header: dict[str, Any], offset: int, rest: bytes) -> Entry:
    meta = header["__metadata__"]
    if meta["format"] != str(FORMAT):
        raise ValueError(f"format {meta['format']}, not {FORMAT}")
    codec, shape, clip = meta["codec"], tuple(json.loads(meta["shape"])), json.loads(meta["clip"])
    if codec not in ("raw", "jpeg") or len(shape) != 4 or shape[1] != 3 or min(shape) < 1 or set(clip) != set(_FIELDS):
        raise ValueError(f"codec {codec}, shape {shape}")
    if not len(clip["times"]) == len(clip["indices"]) == shape[0]:
        raise ValueError(f"{shape[0]} frames with {len(clip['times'])} times")
    if codec == "raw":
        size = header["frames"]["data_offsets"][1]
        if size != math.prod(shape):
            raise ValueError(f"{size} bytes for {shape}")
    else:
        size = header["offsets"]["data_offsets"][1]
        if size < 8 * (shape[0] + 1):
            raise ValueError(f"{size} bytes for {shape}")
    clip["times"], clip["indices"] = tuple(clip["times"]), tuple(clip["indices"])
    return Entry(shape, codec, clip, offset, size, int(meta["crc32"], 16), rest)


def _encode(frame: np.ndarray) -> memoryview:
    import numpy as np
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(frame.transpose(1, 2, 0))).save(out, "JPEG", quality=JPEG_QUALITY, subsampling=0)
    return out.getbuffer()


def _decode(blob: np.ndarray, out: np.ndarray) -> None:
    import numpy as np
    from PIL import Image

    try:
        with Image.open(io.BytesIO(blob.data), formats=["JPEG"]) as picture:
            out[:] = np.asarray(picture).transpose(2, 0, 1)
    except OSError as error:
        raise ValueError(f"a frame does not decode ({error})") from error


def _sync_directory(directory: Path) -> None:
    """Make a rename last. Some network file systems have no such call: there it lasts anyway, or can't be made to."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
