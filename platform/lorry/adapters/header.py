"""Our own bounded reader of a safetensors file, run before any library sees the bytes. No torch.

It refuses what lax readers accept: duplicate keys, holes and overlaps, names that are paths, giant headers,
tensors without elements, bytes after the end, links, and pickles under a safe name.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import re
import stat
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
ITEM_BYTES: Mapping[str, int] = {"F32": 4, "F16": 2, "BF16": 2}
"""The dtypes that are served."""

_STORED: Mapping[str, str] = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_PATTERNS: Mapping[str, tuple[str, int]] = {"F32": ("<u4", 0x7F800000), "F16": ("<u2", 0x7C00), "BF16": ("<u2", 0x7F80)}
"""The bits as unsigned integers, and those of infinity."""
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,510}[A-Za-z0-9_])?\Z")
# Possessive, and an open string counts to the end: otherwise a string of escaped quotes costs its length squared.
_STRUCTURE = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)
_MAX_DEPTH = 8
_MAX_DIGITS = 64
_MAX_DIMENSIONS = 4
_BLOCK_ELEMENTS = 1 << 20


class HeaderRefused(ValueError):
    """The file is not one that this reader serves. ``value`` and ``limit`` are what was found and what is allowed
    (None where there is no one number).

    ``field`` is the part at fault: ``file``, ``header``, ``metadata``, ``tensor``, ``layout``, or the file's own name
    where it cannot be opened. It never repeats what the file says; the message does, quoted and cut.
    """

    def __init__(self, field: str, message: str, value: object = None, limit: object = None) -> None:
        super().__init__(message)
        self.field = field
        self.message = message
        self.value = value
        self.limit = limit


@dataclass(frozen=True, slots=True)
class HeaderLimits:
    """Bounds of the header. ``header_bytes`` counts the JSON, its padding included."""

    header_bytes: int = 1 << 20
    tensors: int = 20_000
    file_bytes: int = 8 << 30


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor as the header states it; ``begin`` and ``end`` count bytes from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def elements(self) -> int:
        return (self.end - self.begin) // ITEM_BYTES[self.dtype]


def show(text: object, width: int = 80) -> str:
    """A value out of a hostile file, made fit for a message: quoted, ASCII, bounded."""
    quoted = ascii(text if not isinstance(text, str) else text[: width + 1])
    return quoted if len(quoted) <= width else quoted[: width - 3] + "..."


def strict_json(text: str, what: str, max_depth: int = _MAX_DEPTH) -> Any:
    """JSON without duplicate keys, NaN, infinities or numbers past a float's range, at most ``max_depth`` deep.

    Time and memory grow with the length of ``text``, which the caller bounds. Raises HeaderRefused naming ``what``.
    """
    depth = 0
    for token in _STRUCTURE.finditer(text):
        first = token[0][0]
        depth += first in "[{"
        depth -= first in "]}"
        if depth > max_depth:
            raise HeaderRefused(what, f"{what}: nested deeper than {max_depth} levels; flatten it", depth, max_depth)

    def pairs(items: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            key, _ = Counter(key for key, _ in items).most_common(1)[0]
            raise HeaderRefused(what, f"{what}: the key {show(key)} is there twice; write it once", key)
        return found

    def constant(name: str) -> Any:
        raise HeaderRefused(what, f"{what}: the number {name} is not JSON; write a finite number", name)

    def whole(digits: str) -> int:
        if len(digits) > _MAX_DIGITS:
            count = len(digits)
            raise HeaderRefused(
                what, f"{what}: a number of {count} digits, over {_MAX_DIGITS}; write fewer", count, _MAX_DIGITS
            )
        return int(digits)

    def fraction(digits: str) -> float:
        number = float(digits)
        if not math.isfinite(number):
            raise HeaderRefused(what, f"{what}: the number {show(digits)} is not finite; write a finite one", digits)
        return number

    try:
        return json.loads(text, object_pairs_hook=pairs, parse_constant=constant, parse_int=whole, parse_float=fraction)
    except HeaderRefused:
        raise
    except (ValueError, RecursionError) as error:
        raise HeaderRefused(what, f"{what}: not readable as JSON ({show(str(error))}); write it again") from error


def open_regular(path: Path) -> int:
    """A read-only descriptor of a regular file; links and anything else are refused. The caller closes it."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
    try:
        _require_regular(path.name, os.lstat(path))  # opening a device can already do something to it
        descriptor = os.open(path, flags)
    except OSError as error:
        raise HeaderRefused(
            path.name, f"{show(path.name)}: cannot be opened ({error.strerror}); upload it again"
        ) from error
    try:
        _require_regular(path.name, os.fstat(descriptor))  # of what was opened, whatever has the name by now
    except HeaderRefused:
        os.close(descriptor)
        raise
    return descriptor


def _require_regular(name: str, found: os.stat_result) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise HeaderRefused(name, f"{show(name)}: a symbolic link; upload the file itself")
    if not stat.S_ISREG(found.st_mode):
        raise HeaderRefused(name, f"{show(name)}: not a regular file; upload the file itself")


def read_bounded(path: Path, limit: int) -> bytes:
    """The whole of a small regular file. Raises HeaderRefused over ``limit`` bytes."""
    descriptor = open_regular(path)
    with os.fdopen(descriptor, "rb") as handle:
        data = handle.read(limit + 1)
    if len(data) > limit:
        raise HeaderRefused(path.name, f"{show(path.name)}: over {limit} bytes; make it smaller", len(data), limit)
    return data


def refuse_pickle(name: str, head: bytes = b"") -> None:
    """By name, and by the first bytes whatever the name says."""
    remedy = "save the adapter as adapter_model.safetensors"
    if name.lower().endswith(PICKLE_SUFFIXES):
        raise HeaderRefused(name, f"{name}: a pickle can run code when it is read and is never opened; {remedy}")
    if head[:1] == b"\x80" and len(head) > 1 and head[1] <= 5 and head[8:9] != b"{":
        raise HeaderRefused(name, f"{name}: holds a pickle (magic 80 {head[1]:02x}) under a safe name; {remedy}")
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        raise HeaderRefused(name, f"{name}: holds a zip archive (as torch.save writes) under a safe name; {remedy}")
    if head[:4] == b"\x7fELF" or head[:6] == b"\x93NUMPY":
        raise HeaderRefused(name, f"{name}: does not hold safetensors; {remedy}")


class TensorFile:
    """An open, checked safetensors file. Tensors are read by memory map; nothing is copied at opening.

    ``tensors`` is in the order of the bytes. Use as a context manager. Arrays handed out stay valid after
    closing (they keep the map), but the file must not be truncated meanwhile.
    """

    def __init__(self, path: Path, limits: HeaderLimits = HeaderLimits()) -> None:
        """Raises HeaderRefused."""
        self.path = path
        refuse_pickle(path.name)
        descriptor = open_regular(path)
        try:
            size = os.fstat(descriptor).st_size
            header, data_begin = _read_header(path.name, descriptor, size, limits)
            self.tensors = _layout(path.name, header, data_begin, size, limits)
            self._map = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Idempotent. The map itself goes with the last array that was handed out."""
        try:
            self._map.close()
        except BufferError:
            pass  # an array still reads from it; the map is released with that array

    def stored(self, name: str) -> npt.NDArray[Any]:
        """The tensor as it lies in the file, read-only and without a copy; BF16 as uint16."""
        info = self.tensors[name]
        flat = np.frombuffer(self._map, dtype=_STORED[info.dtype], count=info.elements, offset=info.begin)
        return flat.reshape(info.shape)

    def read_tensor(self, name: str) -> npt.NDArray[np.float32]:
        """The tensor's values as float32 (exact for every served dtype), a fresh array unless it is F32."""
        array = self.stored(name)
        if self.tensors[name].dtype == "BF16":
            return bf16_to_float32(array)
        return array.astype(np.float32, copy=False)

    def largest_magnitude(self, name: str) -> float:
        """max |x|, taken block by block; inf where a value is not finite.

        Without its sign bit a float's pattern orders as its magnitude does, NaN above infinity above all numbers.
        """
        info = self.tensors[name]
        bits, infinity = _PATTERNS[info.dtype]
        flat = self.stored(name).reshape(-1).view(bits)
        magnitude = np.iinfo(bits).max >> 1
        top = max(
            int((flat[begin : begin + _BLOCK_ELEMENTS] & magnitude).max())
            for begin in range(0, info.elements, _BLOCK_ELEMENTS)
        )
        if top >= infinity:
            return float("inf")
        pattern = np.array([top], dtype=bits)
        return float(bf16_to_float32(pattern)[0] if info.dtype == "BF16" else pattern.view(_STORED[info.dtype])[0])


def bf16_to_float32(bits: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """bfloat16 bit patterns (uint16) to the float32 values that they denote, exactly."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _read_header(name: str, descriptor: int, size: int, limits: HeaderLimits) -> tuple[dict[str, Any], int]:
    if size > limits.file_bytes:
        raise HeaderRefused(
            "file", f"{name}: {size} bytes, over {limits.file_bytes}; save it smaller", size, limits.file_bytes
        )
    head = os.pread(descriptor, 16, 0)
    refuse_pickle(name, head)
    if len(head) < 10:
        raise HeaderRefused(
            "file", f"{name}: {size} bytes, too short for a safetensors header; save it again", size, 10
        )
    length = int.from_bytes(head[:8], "little")
    if length > limits.header_bytes:
        raise HeaderRefused(
            "header",
            f"{name}: states a header of {length} bytes, over {limits.header_bytes}; drop metadata or tensors",
            length,
            limits.header_bytes,
        )
    if 8 + length > size:
        want = 8 + length
        raise HeaderRefused(
            "file", f"{name}: truncated: want {want} bytes for the header, have {size}; upload it again", size, want
        )
    raw = os.pread(descriptor, length, 8)
    if raw[:1] != b"{":
        raise HeaderRefused("header", f"{name}: the header does not begin with '{{': not safetensors; save it again")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise HeaderRefused("header", f"{name}: the header is not UTF-8; save it again") from error
    header: dict[str, Any] = strict_json(text, "header")  # an object: it begins with a brace
    return header, 8 + length


def _layout(
    name: str, header: dict[str, Any], data_begin: int, size: int, limits: HeaderLimits
) -> dict[str, TensorInfo]:
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise HeaderRefused("metadata", f"{name}: __metadata__ must map strings to strings; save it without")
    if len(header) > limits.tensors:
        count = len(header)
        raise HeaderRefused(
            "header", f"{name}: {count} tensors, over {limits.tensors}; save fewer", count, limits.tensors
        )
    infos = sorted((_tensor(key, entry) for key, entry in header.items()), key=lambda info: (info.begin, info.end))
    at = 0
    for info in infos:
        if info.begin != at:
            what = "overlaps the tensor before it" if info.begin < at else "leaves a hole before it"
            message = f"tensor {show(info.name)}: begins at {info.begin}, want {at}: it {what}; save it again"
            raise HeaderRefused("layout", message, info.begin, at)
        at = info.end
    if data_begin + at != size:
        what = "truncated" if data_begin + at > size else "has bytes that no tensor owns"
        want = data_begin + at
        raise HeaderRefused("file", f"{name}: {what}: want {want} bytes, have {size}; upload it again", size, want)
    return {
        info.name: TensorInfo(info.name, info.dtype, info.shape, data_begin + info.begin, data_begin + info.end)
        for info in infos
    }


def _tensor(name: str, entry: Any) -> TensorInfo:
    def refuse(message: str, value: object = None, limit: object = None) -> HeaderRefused:
        return HeaderRefused("tensor", f"tensor {show(name)}: {message}", value, limit)

    def is_size(value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool)

    if not _NAME.match(name) or ".." in name:
        raise refuse("a name is 1 to 512 of A-Z a-z 0-9 _ - and single dots inside")
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise refuse("want exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise refuse(f"dtype {show(dtype)} is not served; save it as one of {', '.join(ITEM_BYTES)}", dtype)
    if not isinstance(shape, list) or not 1 <= len(shape) <= _MAX_DIMENSIONS or not all(map(is_size, shape)):
        raise refuse(f"shape {show(shape)} must be 1 to {_MAX_DIMENSIONS} integers")
    if not all(1 <= size < 1 << 32 for size in shape):
        raise refuse(f"shape {show(shape)} must have sizes of at least 1", shape, 1)
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(is_size, offsets)):
        raise refuse(f"data_offsets {show(offsets)} must be two integers")
    begin, end = offsets
    if not 0 <= begin <= end < 1 << 62:
        raise refuse(f"data_offsets {show(offsets)} must be non-negative and in order", offsets)
    want = ITEM_BYTES[dtype]
    for size in shape:
        want *= size
    if end - begin != want:
        have = end - begin
        raise refuse(f"shape {shape} of {dtype} is {want} bytes, but data_offsets hold {have}", have, want)
    return TensorInfo(name, dtype, tuple(shape), begin, end)


__all__ = [
    "ITEM_BYTES",
    "PICKLE_SUFFIXES",
    "HeaderLimits",
    "HeaderRefused",
    "TensorFile",
    "TensorInfo",
    "bf16_to_float32",
    "open_regular",
    "read_bounded",
    "refuse_pickle",
    "show",
    "strict_json",
]
