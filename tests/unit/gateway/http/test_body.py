"""A body is JSON that all readers understand alike, or refused by name."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lorry.errors import InvalidRequest
from lorry.gateway.http.body import DEPTH_MAX, check_headers, read_object

BAD = [
    (b"", "body"),
    (b"{", "body"),
    (b"[1]", "body"),
    (b'"x"', "body"),
    (b'{"a": NaN}', "body"),
    (b'{"a": Infinity}', "body"),
    (b'{"a": -Infinity}', "body"),
    (b'{"a": 1, "a": 1}', "a"),
    (b'{"a": [{"b": 1, "c": 2, "b": 3}]}', "b"),
    (b'{"a": "\xff"}', "body"),
    (b"\xff\xfe{\x00}\x00", "body"),
    (b'\xef\xbb\xbf{"a": 1}', "body"),
    (b'{"a": ["x", "\\ud800"]}', "a[1]"),
    (b'{"\\ud800": 1}', "a key"),
    (b'{"a": 1' + b"0" * 5000 + b"}", "body"),
    (b'{"a": ' + b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1) + b"}", "body"),
    (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "body"),
    (b"[" * 1_000_000, "body"),
    (b'{"a": 1} {"b": 2}', "body"),
]


@pytest.mark.parametrize(("raw", "field"), BAD, ids=[str(raw[:24]) for raw, _ in BAD])
def test_what_is_no_request_names_its_place(raw: bytes, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_object(raw)
    assert [one.field for one in caught.value.violations] == [field]
    assert len(caught.value.message) < 300


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), PLAIN, max_size=5))
def test_what_is_one_comes_as_it_was(found: dict[str, object]) -> None:
    assert read_object(json.dumps(found).encode()) == found


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_be_refused(raw: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        assert isinstance(read_object(raw), dict)


HEADS = [
    ([], "content-type"),
    ([(b"content-type", b"text/plain")], "content-type"),
    ([(b"content-type", b"application/x-www-form-urlencoded")], "content-type"),
    ([(b"content-type", b"application/json; charset=utf-16")], "content-type"),
    ([(b"content-type", b"application/json"), (b"content-encoding", b"gzip")], "content-encoding"),
    ([(b"content-type", b"application/json"), (b"content-length", b"1001")], "body"),
    ([(b"content-type", b"application/json"), (b"content-length", b"9" * 4000)], "body"),
]


@pytest.mark.parametrize(("headers", "field"), HEADS)
def test_heads(headers: list[tuple[bytes, bytes]], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_headers(headers, 1000)
    assert [one.field for one in caught.value.violations] == [field]


@pytest.mark.parametrize("kind", [b"application/json", b'Application/JSON; charset="UTF-8"'])
def test_heads_that_are_right(kind: bytes) -> None:
    check_headers([(b"content-type", kind), (b"content-length", b"1000")], 1000)
