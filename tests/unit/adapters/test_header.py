import json
import os
import pickle
import struct
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from lorry.adapters.header import HeaderLimits, HeaderRefused, TensorFile, bf16_to_float32, read_bounded, strict_json

from . import craft


def put(tmp_path: Path, data: bytes, name: str = "w.safetensors") -> Path:
    (tmp_path / name).write_bytes(data)
    return tmp_path / name


def entry(begin: int, end: int, shape: list[Any] | None = None, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [(end - begin) // 4] if shape is None else shape, "data_offsets": [begin, end]}


def refused(path: Path, match: str, limits: HeaderLimits | None = None) -> HeaderRefused:
    with pytest.raises(HeaderRefused, match=match) as caught:
        TensorFile(path, limits or HeaderLimits())
    return caught.value


def test_reads_what_safetensors_writes(tmp_path: Path) -> None:
    arrays: dict[str, np.ndarray] = {
        "a.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b.weight": np.array([[1.5, -2.25]], dtype=np.float16),
    }
    save_file(arrays, tmp_path / "w.safetensors", metadata={"format": "pt"})
    with TensorFile(tmp_path / "w.safetensors") as weights:
        assert set(weights.tensors) == set(arrays)
        for name, array in arrays.items():
            read = weights.read_tensor(name)
            assert read.dtype == np.float32
            np.testing.assert_array_equal(read, array.astype(np.float32))


def test_bf16_is_exact(tmp_path: Path) -> None:
    import torch

    values = torch.tensor([[1.0, -0.15625, 3.0e38, 1e-40, 0.0]], dtype=torch.bfloat16)
    bits = values.view(torch.uint16).numpy()
    np.testing.assert_array_equal(bf16_to_float32(bits), values.float().numpy())
    with TensorFile(put(tmp_path, craft.safetensors({"x": bits}))) as weights:
        np.testing.assert_array_equal(weights.read_tensor("x"), values.float().numpy())
        assert weights.largest_magnitude("x") == float(values.float().abs().max())


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("stored", ["<f4", "<f2", "<u2"])
def test_a_value_that_is_not_finite_is_seen(tmp_path: Path, bad: float, stored: str) -> None:
    array = np.ones(1 << 10, dtype=np.float32)
    array[777] = bad
    kept = (array.view(np.uint32) >> 16).astype("<u2") if stored == "<u2" else array.astype(stored)
    with TensorFile(put(tmp_path, craft.safetensors({"x": kept}))) as weights:
        assert weights.largest_magnitude("x") == float("inf")


def test_arrays_outlive_the_file(tmp_path: Path) -> None:
    with TensorFile(put(tmp_path, craft.safetensors({"x": np.arange(4, dtype="<f4")}))) as weights:
        array = weights.stored("x")
    np.testing.assert_array_equal(array, [0, 1, 2, 3])
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


GOOD, DATA = craft.header_of({"x": np.zeros(4, "<f4"), "y": np.zeros(2, "<f4")})

HOSTILE: dict[str, tuple[bytes, str]] = {
    "truncated data": (craft.pack(GOOD, DATA)[:-3], "truncated: want .* have"),
    "truncated header": (craft.pack(GOOD, b"")[:30], "truncated: want .* for the header"),
    "empty file": (b"", "too short"),
    "bytes after the end": (craft.pack(GOOD, DATA + b"x"), "bytes that no tensor owns"),
    "giant header length": (struct.pack("<Q", 1 << 62) + b"{}" + DATA, "header of .* bytes, over"),
    "header over the limit": (craft.pack(b"{" + b" " * (1 << 20) + b"}", b""), "over 1048576"),
    "overlap": (craft.pack({"x": entry(0, 16), "y": entry(8, 24)}, DATA), "overlaps"),
    "hole": (craft.pack({"x": entry(0, 8), "y": entry(16, 24)}, DATA), "hole"),
    "negative offset": (craft.pack({"x": entry(-8, 0, [2])}, DATA), "non-negative"),
    "offsets swapped": (craft.pack({"x": entry(16, 0, [4])}, DATA), "in order"),
    "offsets as floats": (craft.pack({"x": {**entry(0, 16), "data_offsets": [0.0, 16]}}, DATA), "two integers"),
    "offsets as bools": (craft.pack({"x": {**entry(0, 4), "data_offsets": [False, True]}}, DATA), "two integers"),
    "three offsets": (craft.pack({"x": {**entry(0, 4), "data_offsets": [0, 2, 4]}}, DATA), "two integers"),
    "shape against bytes": (craft.pack({"x": entry(0, 16, [5])}, DATA[:16]), r"20 bytes, but data_offsets hold 16"),
    "shape that overflows": (craft.pack({"x": entry(0, 16, [1 << 31, 1 << 31, 4])}, DATA[:16]), "data_offsets hold"),
    "no elements": (craft.pack({"x": entry(0, 0, [0, 4])}, b""), "at least 1"),
    "negative size": (craft.pack({"x": entry(0, 16, [-2, -2])}, DATA[:16]), "at least 1"),
    "scalar": (craft.pack({"x": entry(0, 4, [])}, DATA[:4]), "shape"),
    "dtype F64": (craft.pack({"x": entry(0, 16, [2], "F64")}, DATA[:16]), "dtype 'F64' is not served"),
    "dtype a list": (craft.pack({"x": {**entry(0, 16), "dtype": ["F32"]}}, DATA[:16]), "dtype"),
    "missing field": (craft.pack({"x": {"dtype": "F32", "shape": [4]}}, DATA), "want exactly"),
    "extra field": (craft.pack({"x": {**entry(0, 16), "more": 1}}, DATA[:16]), "want exactly"),
    "entry not an object": (craft.pack({"x": 5}, DATA), "want exactly"),
    "duplicate tensor": (
        craft.pack(b'{"x":%(e)b,"x":%(e)b}' % {b"e": json.dumps(entry(0, 24)).encode()}, DATA),
        "'x' is there twice",
    ),
    "duplicate inner key": (
        craft.pack(b'{"x":{"dtype":"F32","dtype":"F16","shape":[4],"data_offsets":[0,16]}}', DATA),
        "'dtype' is there twice",
    ),
    "traversal name": (craft.pack({"../../etc/passwd": entry(0, 24)}, DATA), "a name is"),
    "double dots": (craft.pack({"a..b": entry(0, 24)}, DATA), "a name is"),
    "empty name": (craft.pack({"": entry(0, 24)}, DATA), "a name is"),
    "control character": (craft.pack({"a\n": entry(0, 24)}, DATA), "a name is"),
    "surrogate in a name": (craft.pack(b'{"\\ud800":%b}' % json.dumps(entry(0, 24)).encode(), DATA), "a name is"),
    "long name": (craft.pack({"a" * 600: entry(0, 24)}, DATA), "a name is"),
    "not JSON": (craft.pack(b'{"x": }', b""), "not readable as JSON"),
    "not UTF-8": (craft.pack(b'{"\xff": 1}', b""), "not UTF-8"),
    "NaN": (craft.pack(b'{"x": NaN}', b""), "NaN is not JSON"),
    "number of many digits": (craft.pack(b'{"x": %b}' % (b"1" * 5000), b""), "5000 digits, over 64"),
    "array": (craft.pack(b'["x","y","z"]', b""), "does not begin with"),
    "deep nesting": (craft.pack(b'{"x":' + b"[" * 5000 + b"]" * 5000 + b"}", b""), "nested deeper"),
    "metadata not strings": (craft.pack({"__metadata__": {"a": 1}, **GOOD}, DATA), "__metadata__"),
    "pickle": (pickle.dumps({"x": [1, 2, 3]}, protocol=4), "pickle"),
    "pickle protocol 2": (pickle.dumps({"x": [1, 2, 3]}, protocol=2), "pickle"),
    "numpy": (b"\x93NUMPY\x01\x00" + bytes(64), "does not hold safetensors"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_file_is_refused(tmp_path: Path, kind: str) -> None:
    data, match = HOSTILE[kind]
    error = refused(put(tmp_path, data), match)
    assert len(error.message) < 400, "a message never repeats the file"


def test_zip_under_a_safe_name(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "w.safetensors", "w") as archive:
        archive.writestr("data.pkl", b"x")
    refused(tmp_path / "w.safetensors", "zip archive")


@pytest.mark.parametrize("name", ["m.bin", "m.pt", "m.PTH", "m.pkl", "m.ckpt"])
def test_pickle_by_name(tmp_path: Path, name: str) -> None:
    refused(put(tmp_path, craft.pack(GOOD, DATA), name), "never opened")


def test_header_length_that_looks_like_a_pickle_is_read(tmp_path: Path) -> None:
    """0x80 0x02 are also the first bytes of the length 640."""
    header = json.dumps(GOOD).encode()
    path = put(tmp_path, craft.pack(header + b" " * (0x280 - len(header)), DATA))
    with TensorFile(path) as weights:
        assert set(weights.tensors) == {"x", "y"}


def test_too_many_tensors(tmp_path: Path) -> None:
    many = {f"t{index}": entry(4 * index, 4 * index + 4) for index in range(50)}
    refused(put(tmp_path, craft.pack(many, bytes(200))), "50 tensors, over 20", HeaderLimits(tensors=20))


def test_symlink_fifo_and_folder(tmp_path: Path) -> None:
    real = put(tmp_path, craft.pack(GOOD, DATA))
    (tmp_path / "link.safetensors").symlink_to(real)
    refused(tmp_path / "link.safetensors", "symbolic link")
    os.mkfifo(tmp_path / "fifo.safetensors")
    refused(tmp_path / "fifo.safetensors", "not a regular file")
    (tmp_path / "folder.safetensors").mkdir()
    refused(tmp_path / "folder.safetensors", "not a regular file")
    refused(tmp_path / "absent.safetensors", "cannot be opened")


def test_strict_json_counts_depth_outside_strings_only() -> None:
    assert strict_json('{"a": "[[[[[[[[[[[[\\"[[["}', "x") == {"a": '[[[[[[[[[[[["[[['}


def test_strict_json_is_linear_in_strings_of_escaped_quotes() -> None:
    """Scanned for brackets with backtracking, 1 MB of these takes hours."""
    for text in (
        '{"' + '\\"' * 500_000,
        '{"' + "\\\\" * 500_000,
        '["' + '\\"' * 250_000 + '"]' + '"' + '\\"' * 200_000,
    ):
        began = time.process_time()
        with pytest.raises(HeaderRefused, match="not readable as JSON"):
            strict_json(text, "x")
        assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('{"a": {"b": [{"c": 1, "c": 1}]}}', "'c' is there twice"),
        ('{"\\u0061": 1, "a": 2}', "'a' is there twice"),
        ("[1e999]", "'1e999' is not finite"),
        ("[-1e400]", "is not finite"),
        ("[%s]" % ("1" * 65), "a number of 65 digits, over 64"),
        ("[-Infinity]", "-Infinity is not JSON"),
        ('"\\ud800', "not readable"),
        ("\ufeff{}", "not readable"),
        ("[" * 9 + "]" * 9, "nested deeper than 8"),
        ("[" * 100_000, "nested deeper than 8"),
    ],
)
def test_strict_json_refuses(text: str, match: str) -> None:
    with pytest.raises(HeaderRefused, match=match) as caught:
        strict_json(text, "x")
    assert caught.value.field == "x"
    assert caught.value.message.startswith("x: ")


def test_strict_json_takes_what_json_is() -> None:
    text = '{"a": [1, -2.5, 1e300, true, null, "\\ud83d\\ude00 [{", {}], "b": %s}' % ("9" * 64)
    assert strict_json(text, "x") == json.loads(text)


def test_what_is_no_file_is_not_even_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To open a device can already do something to it, and to open a pipe can wait."""
    os.mkfifo(tmp_path / "fifo.safetensors")

    def opened(*given: object) -> int:
        raise AssertionError(given)

    monkeypatch.setattr(os, "open", opened)
    refused(tmp_path / "fifo.safetensors", "not a regular file")


def test_what_was_opened_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe that took a file's name after the first look."""
    real = os.lstat(put(tmp_path, craft.pack(GOOD, DATA), "real.safetensors"))
    os.mkfifo(tmp_path / "w.safetensors")
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "lstat", lambda path: real)
    refused(tmp_path / "w.safetensors", "not a regular file")
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("stored", ["<f4", "<f2", "<u2"])
def test_largest_magnitude_is_exact(tmp_path: Path, stored: str) -> None:
    draw = np.random.default_rng(0)
    for size in (1, 7, (1 << 20) + 3):
        wide = (draw.standard_normal(size) * 10.0 ** float(draw.integers(-6, 4))).astype("<f4")
        kept = (wide.view("<u4") >> 16).astype("<u2") if stored == "<u2" else wide.astype(stored)
        read = bf16_to_float32(kept) if stored == "<u2" else kept
        with TensorFile(put(tmp_path, craft.safetensors({"x": kept}))) as weights:
            assert weights.largest_magnitude("x") == float(np.abs(read).max())
    for value in (0.0, -0.0):
        with TensorFile(put(tmp_path, craft.safetensors({"x": np.full(3, value, "<f4")}))) as weights:
            assert weights.largest_magnitude("x") == 0.0


def test_the_field_at_fault_never_repeats_the_file(tmp_path: Path) -> None:
    evil = "../" + "x" * 50
    assert refused(put(tmp_path, craft.pack({evil: entry(0, 24)}, DATA)), "a name is").field == "tensor"
    assert refused(put(tmp_path, craft.pack({"x": entry(8, 24)}, DATA)), "hole").field == "layout"


def test_sizes_are_bounded_before_anything_is_read(tmp_path: Path) -> None:
    with put(tmp_path, craft.pack(GOOD, DATA)).open("ab") as handle:
        handle.truncate(1 << 40)
    refused(tmp_path / "w.safetensors", "1099511627776 bytes, over 8589934592")
    with pytest.raises(HeaderRefused, match="over 10 bytes") as caught:
        read_bounded(tmp_path / "w.safetensors", 10)
    assert (caught.value.value, caught.value.limit) == (11, 10)
    assert read_bounded(put(tmp_path, b"0123456789", "small"), 10) == b"0123456789"
