"""Safetensors files that lie, repeat themselves, or are something else."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from random import Random
from typing import Any

from tests.unit.adapters import craft
from tests.unit.adapters.hostile.kinds import WEIGHTS_NAME, Kind, Spoil, sparse, weights

HEADER, DATA = craft.header_of(craft.tensors())
GOOD = craft.pack(HEADER, DATA)
NAMES = list(HEADER)
_LENGTH = len(GOOD) - len(DATA) - 8


def changed(change: Callable[[dict[str, Any], Random], object]) -> Spoil:
    """A tensor's entry is changed by ``change``."""

    def make(draw: Random) -> bytes:
        header = {name: {**entry, "data_offsets": [*entry["data_offsets"]]} for name, entry in HEADER.items()}
        change(header[draw.choice(NAMES)], draw)
        return craft.pack(header, DATA)

    return weights(make)


def entry(field: str, *values: Any) -> Spoil:
    return changed(lambda found, draw: found.update({field: draw.choice(values)}))


def renamed(*names: str) -> Spoil:
    """A tensor's name is one of these; None of its bytes move."""

    def make(draw: Random) -> bytes:
        old, new = draw.choice(NAMES), draw.choice(names)
        return craft.pack({new if name == old else name: found for name, found in HEADER.items()}, DATA)

    return weights(make)


def raw(*headers: bytes) -> Spoil:
    """The header's JSON is one of these, its length told truly."""
    return weights(lambda draw: craft.pack(draw.choice(headers), DATA))


def inserted(*members: bytes) -> Spoil:
    """One of these stands before the good members of the header."""
    rest = json.dumps(HEADER).encode()[1:]
    return raw(*(b"{" + member + b"," + rest for member in members))


def length(*lengths: int) -> Spoil:
    return weights(lambda draw: struct.pack("<Q", draw.choice(lengths)) + GOOD[8:])


def _twice(draw: Random) -> bytes:
    name = draw.choice(NAMES)
    member = f"{json.dumps(name)}:{json.dumps(HEADER[name])},".encode()
    return craft.pack(b"{" + member + json.dumps(HEADER).encode()[1:], DATA)


def _twice_escaped(draw: Random) -> bytes:
    name = draw.choice(NAMES)
    at = draw.randrange(len(name))
    spelt = name[:at] + f"\\u{ord(name[at]):04x}" + name[at + 1 :]
    member = f'"{spelt}":{json.dumps(HEADER[name])},'.encode()
    return craft.pack(b"{" + member + json.dumps(HEADER).encode()[1:], DATA)


def _shift(by: tuple[int, ...]) -> Spoil:
    """All tensors from one on lie elsewhere."""

    def make(draw: Random) -> bytes:
        moved = draw.choice(by)
        at = draw.randrange(1, len(NAMES))
        header = dict(HEADER)
        for name in NAMES[at:]:
            begin, end = HEADER[name]["data_offsets"]
            header[name] = HEADER[name] | {"data_offsets": [begin + moved, end + moved]}
        return craft.pack(header, DATA + bytes(max(moved, 0)))

    return weights(make)


def _shared(draw: Random) -> bytes:
    """Two tensors have the same bytes, and the rest of the file is nobody's."""
    header = dict(HEADER)
    header["base_model.model.model.norm.weight"] = HEADER[draw.choice(NAMES)]
    return craft.pack(header, DATA)


def _zip(draw: Random) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"x": draw.random()}))
    return out.getvalue()


def _pickle(draw: Random) -> bytes:
    return pickle.dumps({"x": [draw.random()]}, protocol=draw.choice((2, 3, 4, 5)))


def _deep(draw: Random) -> bytes:
    depth = draw.choice((9, 1000, 100_000))
    opening, closing = draw.choice(((b"[", b"]"), (b'{"a":', b"}")))
    return craft.pack(b'{"x":' + opening * depth + b"0" + closing * depth + b"}", DATA)


def _many(count: int) -> bytes:
    """``count`` tensors without an element."""
    members = (b'"t%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}' % index for index in range(count))
    return craft.pack(b"{" + b",".join(members) + b"}", b"")


def _crowd(draw: Random) -> bytes:
    """More tensors than are taken, in a header that is short enough."""
    return craft.pack(b"{" + b",".join(b'"%x":0' % index for index in range(draw.randint(20_001, 90_000))) + b"}", b"")


def _metadata(size: int) -> bytes:
    return craft.pack(b'{"__metadata__":{"a":"' + b"x" * size + b'"},' + json.dumps(HEADER).encode()[1:], DATA)


HEADERS = (
    Kind("a tensor twice", "weights.header", "'base_model.* is there twice", weights(_twice)),
    Kind("a tensor twice, once escaped", "weights.header", "is there twice", weights(_twice_escaped)),
    Kind(
        "a key of an entry twice",
        "weights.header",
        "'(dtype|shape)' is there twice",
        inserted(
            b'"x":{"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]}',
            b'"x":{"dtype":"F32","shape":[1],"shape":[2],"data_offsets":[0,4]}',
        ),
    ),
    Kind(
        "metadata twice",
        "weights.header",
        "'(__metadata__|a)' is there twice",
        inserted(b'"__metadata__":{},"__metadata__":{"format":"pt"}', b'"__metadata__":{"a":"1","a":"2"}'),
    ),
    Kind("overlap", "weights.layout", "overlaps the tensor before", _shift((-1, -4, -64))),
    Kind("hole", "weights.layout", "leaves a hole", _shift((1, 4, 4096))),
    Kind("two tensors in one place", "weights.layout", "overlaps", weights(_shared)),
    Kind("negative offsets", "weights.tensor", "non-negative", entry("data_offsets", [-256, 0], [-1, 255], [-2, -1])),
    Kind("offsets in the wrong order", "weights.tensor", "in order", entry("data_offsets", [256, 0], [1 << 40, 1])),
    Kind(
        "offsets as fractions",
        "weights.tensor",
        "two integers",
        entry("data_offsets", [0.0, 256], [0, 256.0], [0, 1e300]),
    ),
    Kind("offsets as booleans", "weights.tensor", "two integers", entry("data_offsets", [False, True], [False, 256])),
    Kind("offsets as text", "weights.tensor", "two integers", entry("data_offsets", ["0", "256"], "0,256", None, {})),
    Kind("too many offsets", "weights.tensor", "two integers", entry("data_offsets", [0, 1, 256], [0], [])),
    Kind(
        "offsets past everything",
        "weights.tensor",
        "data_offsets",
        entry("data_offsets", [0, 1 << 63], [1 << 64, (1 << 64) + 256], [0, 10**60]),
    ),
    Kind(
        "a number of a million digits",
        "weights.header",
        "digits, over 64",
        inserted(b'"x":' + b"9" * 900_000, b'"x":-' + b"1" * 5000),
    ),
    Kind("a number past all floats", "weights.header", "not finite", inserted(b'"x":1e999', b'"x":-1.5e400')),
    Kind("NaN in the header", "weights.header", "is not JSON", inserted(b'"x":NaN', b'"x":Infinity', b'"x":-Infinity')),
    Kind("a dtype that lies", "weights.tensor", "data_offsets hold", entry("dtype", "F16", "BF16")),
    Kind(
        "a dtype that is not served",
        "weights.tensor",
        "dtype .* is not served",
        entry("dtype", "F64", "I8", "U8", "BOOL", "F8_E4M3", "C64", "f32", "F32 ", "", "\x00", "F" * 5000),
        8,
    ),
    Kind("a dtype that is no text", "weights.tensor", "dtype", entry("dtype", None, 32, ["F32"], {"F32": 1}, True)),
    Kind("a shape that lies", "weights.tensor", "data_offsets hold", entry("shape", [4, 17], [5, 16], [64, 64], [1])),
    Kind(
        "a shape that overflows",
        "weights.tensor",
        "data_offsets hold|sizes of at least",
        entry("shape", [1 << 31, 1 << 31, 4], [(1 << 32) - 1] * 4, [1 << 62, 4], [1 << 64], [10**60]),
    ),
    Kind("a negative size", "weights.tensor", "at least 1", entry("shape", [-4, -16], [-1], [4, -16])),
    Kind("a size of zero", "weights.tensor", "at least 1", entry("shape", [0], [0, 16], [4, 0])),
    Kind("no dimension", "weights.tensor", "1 to 4 integers", entry("shape", [])),
    Kind("too many dimensions", "weights.tensor", "1 to 4 integers", entry("shape", [1] * 5, [1] * 60_000)),
    Kind(
        "a shape of other things",
        "weights.tensor",
        "shape",
        entry("shape", [4.0, 16.0], [True, 16], ["4", "16"], None, "4x16", {"0": 4}, [[4, 16]]),
    ),
    Kind(
        "a field too few",
        "weights.tensor",
        "want exactly",
        changed(lambda found, draw: found.pop(draw.choice([*found]))),
    ),
    Kind(
        "a field too many",
        "weights.tensor",
        "want exactly",
        changed(lambda found, draw: found.update({draw.choice(("strides", "DTYPE", "")): 1})),
    ),
    Kind(
        "an entry that is none",
        "weights.tensor",
        "want exactly",
        inserted(b'"x":0', b'"x":null', b'"x":[]', b'"x":"F32"'),
    ),
    Kind(
        "a name that is a path",
        "weights.tensor",
        "a name is",
        renamed("../../etc/passwd", "..", "a/../../b", "..\\..\\a", "lora/../A", "a/b", "./a"),
    ),
    Kind(
        "an absolute name",
        "weights.tensor",
        "a name is",
        renamed("/etc/passwd", "C:\\weights", "file:///etc/passwd", "~/a"),
    ),
    Kind("NUL in a name", "weights.tensor", "a name is", renamed("a\x00b", "\x00", "lora_A.weight\x00.safe")),
    Kind("a name with line breaks", "weights.tensor", "a name is", renamed("a\n", "a\r\nb", "\x1b[2Ja", "a\tb", "a b")),
    Kind(
        "letters that look alike",
        "weights.tensor",
        "a name is",
        renamed("b\u0430se_model", "lor\u0430_A", "\uff41", "\u0660"),
    ),
    Kind("invisible letters", "weights.tensor", "a name is", renamed("a\u200bb", "\u202eevil", "a\ufeff", "a\u0301")),
    Kind(
        "a lone surrogate",
        "weights.tensor",
        "a name is",
        inserted(b'"\\ud800":0', b'"a\\udfff":0', b'"\\udead\\ud83d":0'),
    ),
    Kind("no name", "weights.tensor", "a name is", renamed("")),
    Kind("an endless name", "weights.tensor", "a name is", renamed("a" * 513, "a" * 900_000, "a." * 300 + "a")),
    Kind("dots at the ends", "weights.tensor", "a name is", renamed(".a", "a.", "a..b", "-a", "a-")),
    Kind("20,001 tensors", "weights.header", "tensors, over 20000", weights(_crowd)),
    Kind(
        "300,000 empty tensors",
        "weights.header",
        "header of .* bytes, over 1048576",
        weights(lambda draw: _many(300_000)),
        1,
    ),
    Kind(
        "90 MB of metadata",
        "weights.header",
        "header of .* bytes, over 1048576",
        weights(lambda draw: _metadata(90 << 20)),
        1,
    ),
    Kind(
        "2 MB of metadata",
        "weights.header",
        "header of .* bytes, over 1048576",
        weights(lambda draw: _metadata(2 << 20)),
        1,
    ),
    Kind(
        "metadata of other things",
        "weights.metadata",
        "must map strings to strings",
        inserted(
            b'"__metadata__":{"a":1}', b'"__metadata__":[]', b'"__metadata__":null', b'"__metadata__":{"a":{"b":"c"}}'
        ),
    ),
    Kind("a tensor called metadata", "weights.metadata", "strings", renamed("__metadata__")),
    Kind("a nesting bomb", "weights.header", "nested deeper than 8", weights(_deep)),
    Kind(
        "a string of escaped quotes without an end",
        "weights.header",
        "not readable as JSON",
        raw(b'{"' + b'\\"' * 500_000, b'{"' + b"\\\\" * 400_000 + b'\\"' * 100_000),
    ),
    Kind(
        "not UTF-8",
        "weights.header",
        "not UTF-8",
        inserted(b'"\xff":0', b'"\xc0\xaf":0', b'"\xed\xa0\x80":0', b'"\xf5\x80\x80\x80":0', b'"\xe2\x82":0'),
    ),
    Kind(
        "a byte order mark", "weights.header", "does not begin with", raw(b"\xef\xbb\xbf" + json.dumps(HEADER).encode())
    ),
    Kind(
        "UTF-16",
        "weights.header",
        "does not begin with|not readable|not UTF-8",
        raw(json.dumps(HEADER).encode("utf-16")),
    ),
    Kind(
        "a header of another type", "weights.header", "does not begin with", raw(b"[]", b'"x"', b"0", b"null", b" {}")
    ),
    Kind(
        "JSON that is none",
        "weights.header",
        "not readable as JSON",
        raw(b'{"x":}', b"{'x':0}", b'{"x":0,}', b"{x:0}", b'{"x":0}{"y":0}', b'{"x":0}//', b'{"x":01}', b'{"a\n":0}'),
        6,
    ),
    Kind("a header of no length", "weights.header", "does not begin with", length(0)),
    Kind("a header longer than the file", "weights.file", "truncated", length(len(GOOD) + 1, len(GOOD), 1 << 20)),
    Kind(
        "a header length beyond all",
        "weights.header",
        "header of .* bytes, over",
        length((1 << 20) + 1, 1 << 32, 1 << 62, 1 << 63, (1 << 64) - 1),
    ),
    Kind(
        "a header length a bit off",
        "weights.(header|file)",
        "not readable|truncated|no tensor owns",
        length(_LENGTH - 1, _LENGTH + 1),
    ),
    Kind("data cut off", "weights.file", "truncated", weights(lambda draw: GOOD[: -draw.randint(1, len(DATA))])),
    Kind(
        "header cut off",
        "weights.file",
        "truncated|too short",
        weights(lambda draw: GOOD[: draw.randint(1, _LENGTH + 7)]),
    ),
    Kind(
        "bytes after the end",
        "weights.file",
        "no tensor owns",
        weights(lambda draw: GOOD + draw.randbytes(draw.randint(1, 9))),
    ),
    Kind("a zip archive at the end", "weights.file", "no tensor owns", weights(lambda draw: GOOD + _zip(draw))),
    Kind("an empty file", "weights.file", "too short", weights(lambda draw: b"")),
    Kind("nothing but a length", "weights.file", "too short", weights(lambda draw: bytes(draw.randint(1, 9)))),
    Kind("a pickle under a safe name", f"weights.{WEIGHTS_NAME}", "holds a pickle", weights(_pickle)),
    Kind(
        "a pickle in letters",
        "weights.header",
        "header of .* bytes, over",
        weights(lambda draw: pickle.dumps(["a" * 9], 0)),
    ),
    Kind("a zip under a safe name", f"weights.{WEIGHTS_NAME}", "zip archive", weights(_zip)),
    Kind(
        "a program under a safe name",
        f"weights.{WEIGHTS_NAME}",
        "not hold safetensors",
        weights(lambda draw: b"\x7fELF\x02\x01\x01" + bytes(99)),
    ),
    Kind(
        "numpy under a safe name",
        f"weights.{WEIGHTS_NAME}",
        "not hold safetensors",
        weights(lambda draw: b"\x93NUMPY\x01\x00" + bytes(99)),
    ),
    Kind(
        "some other file",
        "weights.(header|file)",
        "header of .* bytes, over|truncated",
        weights(
            lambda draw: draw.choice(
                (
                    b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
                    b"GGUF\x03\x00\x00\x00" + bytes(64),
                    b"\x1f\x8b\x08\x00" + bytes(64),
                    b"<!DOCTYPE html><html>404</html>",
                    b'{"peft_type": "LORA", "r": 4}',
                    b"#!/bin/sh\nrm -rf /\n",
                    b"\x89HDF\r\n\x1a\n" + bytes(64),
                )
            )
        ),
        6,
    ),
    Kind("a sparse giant", "weights.file", "1099511627776 bytes, over", sparse(WEIGHTS_NAME, 1 << 40), 1),
    Kind("a sparse tail", "weights.file", "no tensor owns", sparse(WEIGHTS_NAME, 7 << 30), 1),
)

__all__ = ["DATA", "GOOD", "HEADER", "HEADERS", "NAMES"]
