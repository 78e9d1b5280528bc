"""StopMatcher against str.find over the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lorry.text import StopMatcher


def _oracle(text: str, stops: tuple[str, ...], include: bool) -> tuple[str, str]:
    found = [(text.find(stop), len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, ""
    start, length, stop = min(found)
    return text[: start + length if include else start], stop


def _run(text: str, stops: tuple[str, ...], include: bool, cuts: list[int]) -> tuple[str, str]:
    matcher, out, at = StopMatcher(stops, include), [], 0
    for cut in [*cuts, len(text)]:
        emit, matched = matcher.feed(text[at : at + cut])
        at += cut
        out.append(emit)
        if matched:
            return "".join(out), matched
    emit, matched = matcher.flush()
    return "".join(out) + emit, matched


@settings(max_examples=600, deadline=None)
@given(
    text=st.text("abc", max_size=24),
    stops=st.lists(st.text("abc", min_size=1, max_size=5), max_size=4).map(tuple),
    include=st.booleans(),
    cuts=st.lists(st.integers(0, 3), max_size=24),
)
def test_equals_find_over_the_whole_text(text: str, stops: tuple[str, ...], include: bool, cuts: list[int]) -> None:
    assert _run(text, stops, include, cuts) == _oracle(text, stops, include)


@given(
    text=st.text("ab", max_size=30),
    stops=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3).map(tuple),
)
def test_holds_back_only_what_may_still_stop(text: str, stops: tuple[str, ...]) -> None:
    matcher, seen = StopMatcher(stops), ""
    for char in text:
        emit, matched = matcher.feed(char)
        seen += emit
        if matched:
            return
        held = text[len(seen) :][: len(matcher._held)]
        assert len(held) <= max(map(len, stops))
        assert held == "" or any(stop.startswith(held[: len(stop)]) for stop in stops)


def test_split_over_pieces() -> None:
    matcher = StopMatcher(("\nUser:",))
    assert matcher.feed("Hello\n") == ("Hello", "")
    assert matcher.feed("Us") == ("", "")
    assert matcher.feed("er: and more") == ("", "\nUser:")


def test_false_alarm_is_released() -> None:
    matcher = StopMatcher(("###",))
    assert matcher.feed("a##") == ("a", "")
    assert matcher.feed("b") == ("##b", "")


def test_include_stop_and_empty_stop() -> None:
    assert StopMatcher(("END",), include_stop=True).feed("the END.") == ("the END", "END")
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(("",))
