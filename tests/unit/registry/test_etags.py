"""Etags: opaque, of one revision, and compared whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lorry import errors
from lorry.registry.etags import ETAG_MAX, check_etag, etag_of

PARTS = st.lists(st.one_of(st.text(max_size=6), st.integers(0, 200)), min_size=1, max_size=4)


@given(PARTS, PARTS)
def test_different_parts_differ(one: list[str | int], other: list[str | int]) -> None:
    assert (etag_of(*one) == etag_of(*other)) == (list(map(str, one)) == list(map(str, other)))
    assert len(etag_of(*one)) == 16


def test_no_two_lists_share_their_bytes() -> None:
    assert len({etag_of("a", "b1"), etag_of("ab", "1"), etag_of("a", "b", 1), etag_of("ab1")}) == 4


def test_what_is_compared() -> None:
    now = etag_of("alias", "x", 2)
    for given_, current in (("", None), ("", now), (now, now), ("new", None)):
        check_etag(given_, current)
    for stale, current in ((etag_of("alias", "x", 1), now), (now[:-1], now), (now + "0", now), ("é", now), (now, None)):
        with pytest.raises(errors.StaleEtag, match="etag"):
            check_etag(stale, current)
    with pytest.raises(errors.AlreadyExists, match="etag"):
        check_etag("new", now)
    with pytest.raises(errors.InvalidRequest):
        check_etag("0" * (ETAG_MAX + 1), now)
