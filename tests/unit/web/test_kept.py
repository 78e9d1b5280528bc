"""A form that is kept comes back as it was, or not at all."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lorry_admin.web.kept import FIELDS_MAX, SECRET, decode, keep

FIELDS = st.lists(st.tuples(st.sampled_from(["a", "etag", "prompt"]), st.text(max_size=50)), min_size=1, max_size=8)


@given(FIELDS, st.booleans())
def test_there_and_back(fields: list[tuple[str, str]], files: bool) -> None:
    made = keep("/tenants/acme/keys", fields, files, 4096)
    if sum(len(name) + len(value.encode("utf-8", "surrogatepass")) for name, value in fields) > 4096:
        assert made is None
        return
    assert made is not None
    assert decode(made.encode(), 4096) == made
    assert set(made.shown) | set(made.hidden) == set(fields)


@pytest.mark.parametrize("name", sorted(SECRET))
def test_secrets_are_not_kept(name: str) -> None:
    made = keep("/x", [(name, "s"), ("a", "b")], False, 1000)
    assert made is not None
    assert made.fields == (("a", "b"),)
    assert keep("/x", [(name, "s")], False, 1000) is None


@pytest.mark.parametrize("action", ["//evil.test/x", "https://evil.test", "/a?b=c", "x", "", "/\\evil", "/a b", '/"'])
def test_only_this_apps_own_places(action: str) -> None:
    assert keep(action, [("a", "b")], False, 1000) is None
    found = {"action": action, "fields": [["a", "b"]], "files": False}
    assert decode(base64.urlsafe_b64encode(json.dumps(found).encode()).decode(), 1000) is None


@pytest.mark.parametrize(
    "found",
    [
        None,
        [],
        {"action": "/x"},
        {"action": "/x", "fields": [["a"]], "files": False},
        {"action": "/x", "fields": [["a", 1]], "files": False},
        {"action": 1, "fields": [["a", "b"]], "files": False},
        {"action": "/x", "fields": [["a", "b"]] * (FIELDS_MAX + 1), "files": False},
        {"action": "/x", "fields": [["a", "b" * 2000]], "files": False},
    ],
)
def test_what_it_did_not_make_is_nothing(found: object) -> None:
    assert decode(base64.urlsafe_b64encode(json.dumps(found).encode()).decode(), 1000) is None


@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    assert decode(text, 1000) is None
