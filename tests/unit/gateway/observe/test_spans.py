"""A story's spans: whatever its times say, they lie in the request and follow each other."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from lorry.gateway.observe import w3c
from lorry.gateway.observe.spans import spans_of
from lorry.gateway.observe.story import Story

NOW = 1_800_000_000_000_000_000
STORY = Story(w3c.begin(1.0), "grpc", "chat", True, "OK", "OK", NOW, 2.0, model="models/x")
SECONDS = st.none() | st.floats(min_value=0, max_value=100)


def test_the_phases_are_where_the_engine_says() -> None:
    story = replace(
        STORY,
        submitted_s=0.25,
        queue_s=0.5,
        adapter_load_s=0.25,
        tier="disk",
        ttft_s=0.75,
        decode_s=0.5,
        answered_s=1.1,
    )
    root, *found = spans_of(story)
    began = NOW - 2_000_000_000

    def seconds(at: int) -> float:
        return (at - began) / 1e9

    assert [(span.name, seconds(span.start_ns), seconds(span.end_ns)) for span in (root, *found)] == [
        ("chat models/x", 0.0, 2.0),
        ("gateway.admit", 0.0, 0.25),
        ("queue", 0.25, 0.75),
        ("adapter.load", 0.25, 0.5),
        ("prefill", 0.75, 1.0),
        ("decode", 1.0, 1.5),
    ]


def test_a_request_that_was_cut_ends_with_its_last_span() -> None:
    story = replace(STORY, outcome="STALLED", submitted_s=0.5, queue_s=0.25, answered_s=1.25)
    *_, prefill, decode = spans_of(story)
    assert (prefill.error, decode.error) == ("", "STALLED")
    assert prefill.end_ns == decode.start_ns == NOW - 750_000_000
    assert decode.end_ns == NOW


@given(SECONDS, SECONDS, SECONDS, SECONDS, SECONDS, SECONDS, st.sampled_from(["OK", "INTERNAL", "CANCELLED"]))
def test_spans_lie_in_each_other(
    submitted: float | None,
    answered: float | None,
    queue: float | None,
    load: float | None,
    ttft: float | None,
    decode: float | None,
    outcome: str,
) -> None:
    story = replace(
        STORY, outcome=outcome, submitted_s=submitted, answered_s=answered, queue_s=queue, adapter_load_s=load,
        ttft_s=ttft, decode_s=decode,
    )  # fmt: skip
    root, *children = spans_of(story)
    by_id = {span.id: span for span in (root, *children)}
    assert len(by_id) == 1 + len(children)
    for span in children:
        above = by_id[span.parent]
        assert above.start_ns <= span.start_ns <= span.end_ns <= above.end_ns
    phases = [span for span in children if span.parent == root.id]
    assert [one.end_ns for one in phases[:-1]] == [one.start_ns for one in phases[1:]]
    assert (root.error, all(span.error == "" for span in children)) == (
        ("", True) if outcome == "OK" else (outcome, queue is not None and decode is not None and submitted is not None)
    )
