"""What is taken for a trace context, and what is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lorry.gateway.observe import w3c

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01"


def test_a_context() -> None:
    assert w3c.read(GOOD, "a=1, b@c=2 ,,") == w3c.TraceContext(TRACE, SPAN, True, "a=1,b@c=2")
    assert w3c.read(f"00-{TRACE}-{SPAN}-fe", "") == w3c.TraceContext(TRACE, SPAN, False)
    assert w3c.read(f"cc-{TRACE}-{SPAN}-03-later", "") == w3c.TraceContext(TRACE, SPAN, True)


@pytest.mark.parametrize(
    "parent",
    [
        "",
        GOOD[:-1],
        f"{GOOD}0",
        f"{GOOD}-more",
        f"{GOOD}\n",
        f" {GOOD}",
        GOOD.upper(),
        f"ff-{TRACE}-{SPAN}-01",
        f"0-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-1x",
        f"01-{TRACE}-{SPAN}-01-{'x' * 300}",
        f"01-{TRACE}-{SPAN}-01-\n",
        GOOD.replace("-", "_"),
    ],
)
def test_no_context(parent: str) -> None:
    assert w3c.read(parent, "a=1") is None


@pytest.mark.parametrize(
    "state",
    [
        ",".join(f"{key}={'1' * 200}" for key in "abc"),
        ",".join(f"k{at}=1" for at in range(33)),
        "a=1,a=2",
        "A=1",
        "a=",
        "a",
        "=1",
        "a=b=c",
        "a=\n1",
        "a=\u00fc",
        "a=1,broken",
        "a=1\n",
    ],
)
def test_a_bad_state_is_dropped_and_the_parent_stays(state: str) -> None:
    assert w3c.read(GOOD, state) == w3c.TraceContext(TRACE, SPAN, True, "")


@given(st.text(max_size=600), st.text(max_size=600))
def test_nothing_raises(parent: str, state: str) -> None:
    found = w3c.read(parent, state)
    assert found is None or w3c.read(GOOD, found.state) == w3c.TraceContext(TRACE, SPAN, True, found.state)
    kept = w3c.read(GOOD, state)
    assert kept is not None
    assert len(kept.state) <= w3c.STATE_CHARS
    assert kept.state == "" or kept.state.isprintable()


def test_headers() -> None:
    assert w3c.headers_of([]) == ("", "")
    found: list[tuple[str, str | bytes]] = [("TraceParent", GOOD), ("tracestate", "a=1"), ("x", "y")]
    found += [("TRACESTATE", "b=2"), ("traceparent-bin", b"x")]
    assert w3c.headers_of(found) == (GOOD, "a=1,b=2")
    assert w3c.headers_of([("traceparent", GOOD), ("traceparent", GOOD)]) == ("", "")


def test_so_many_are_kept() -> None:
    assert not any(w3c.begin(0.0).sampled for _ in range(100))
    assert all(w3c.begin(1.0).sampled for _ in range(100))
    kept = sum(w3c.begin(0.25).sampled for _ in range(4000))
    assert 800 < kept < 1200
    made = w3c.begin(1.0)
    assert w3c.read(f"00-{made.trace_id}-{w3c.span_id()}-01", "") is not None
