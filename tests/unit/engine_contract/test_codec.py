"""Every field of requests and events crosses the wire and comes back; outputs merge by choice."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lorry.adapters.manifest import AdapterFile, AdapterRef
from lorry.adapters.plan import TextPlan
from lorry.engine.contract import ChoiceEnd, EngineEvent, EngineRequest, Finished, Provenance, Started, Tokens
from lorry.engine.metrics import EngineMetrics
from lorry.engine.transport_codec import (
    add_event,
    events_from_proto,
    key_from_proto,
    request_from_proto,
    request_to_proto,
)
from lorry.engine.transport_metrics import metrics_from_proto, metrics_to_proto
from lorry.errors import InvalidRequest
from lorry.histogram import Spread
from lorry.ids import AdapterDigest, AdapterScope, BaseDigest, RequestId, TenantId
from lorry.internal.v1 import engine_pb2 as pb
from lorry.request import OutputParams, SamplingParams, StoppingParams, TokenLogprobs

PLAIN = EngineRequest(
    RequestId("r"), TenantId("t"), (1, 2, 3), None, BaseDigest("b" * 64), SamplingParams(), StoppingParams(4)
)
FULL = EngineRequest(
    RequestId("r"),
    TenantId("t"),
    (1, 2, 3),
    AdapterRef(
        AdapterDigest("a" * 64), "adapters/a", (AdapterFile("adapter_config.json", 7, "c" * 64),), AdapterScope("a_one")
    ),
    BaseDigest("b" * 64),
    SamplingParams(0.5, 0.25, 40, 0.125, 2**63 + 5, 1.5, -0.75, 0.625, ((3, -2.5), (17, 100.0))),
    StoppingParams(9, 2, ("x", "y"), (5, 6), True, True),
    deadline_s=8.5,
    queue_timeout_s=2.5,
    reject_cold=True,
    ttft_timeout_s=3.25,
    priority=-7,
    n=5,
    output=OutputParams(top_logprobs=0, prompt_logprobs=20),
    cache_salt=b"\x00\xffsalt",
    cache_scope="scope",
    vocabulary=0,
    text=TextPlan("e" * 64, 330, (2, 5)),
    weight=100,
)


@pytest.mark.parametrize("request_", [PLAIN, FULL], ids=["plain", "full"])
def test_requests_come_back(request_: EngineRequest) -> None:
    assert request_from_proto(request_to_proto(request_, 1)) == request_


def test_a_gateway_that_states_no_weight_states_one() -> None:
    message = request_to_proto(FULL, 1)
    message.ClearField("weight")
    assert request_from_proto(message).weight == 1


@pytest.mark.parametrize("message", [pb.AdapterVersionRef, pb.GetWhereaboutsRequest, pb.EvictRequest, pb.ForgetRequest])
def test_a_version_without_a_scope_is_refused(message: type[Any]) -> None:
    """An older gateway's: two adapters with equal bytes would have one copy."""
    with pytest.raises(InvalidRequest, match="scope"):
        key_from_proto(message(sha256="a" * 64))
    assert key_from_proto(message(sha256="a" * 64, scope="a_1")) == ("a" * 64, "a_1")


def test_full_leaves_no_field_at_its_default() -> None:
    """So that a field that is added and not encoded is missed above."""
    for full in (FULL, FULL.sampling, FULL.stopping, FULL.output):
        for field in dataclasses.fields(full):
            assert getattr(full, field.name) != field.default, field.name


def test_metrics_come_back() -> None:
    names = {field.name: field.type for field in dataclasses.fields(EngineMetrics)}
    values: dict[str, Any] = {}
    for at, (name, kind) in enumerate(names.items(), 1):
        spread = Spread((0.5, 1.0), (at, 0, 2**40), at / 8)
        made: dict[str, Any] = {
            "str": f"text {at}",
            "float": at + 0.25,
            "int": at,
            "Spread": spread,
            "Mapping[str, int]": {"one": at, "none": 0},
            "Mapping[str, Spread]": {"one": spread},
        }
        values[name] = made[str(kind)]
    metrics = EngineMetrics(**values)
    wire = metrics_to_proto(metrics).SerializeToString()
    assert metrics_from_proto(pb.GetMetricsResponse.FromString(wire)) == metrics
    assert metrics_from_proto(metrics_to_proto(EngineMetrics())) == EngineMetrics()


def test_absent_fields_of_an_older_gateway_read_as_none_of_it() -> None:
    message = request_to_proto(PLAIN, 1)
    message.n = 0
    message.sampling.repetition_penalty = 0.0
    message.ClearField("output")
    assert request_from_proto(message) == PLAIN
    assert request_from_proto(request_to_proto(replace(PLAIN, output=OutputParams(0, None)), 1)).output == OutputParams(
        0
    )
    assert request_from_proto(request_to_proto(replace(PLAIN, output=OutputParams(None, 0)), 1)).output == (
        OutputParams(None, 0)
    )


ids = st.integers(0, 2**31)
floats = st.floats(-100, 0, width=32)
tops = st.lists(st.tuples(ids, floats), max_size=3).map(tuple)
scores = st.builds(TokenLogprobs, ids, floats, tops)
texts = st.text(max_size=4)


@st.composite
def pieces(draw: st.DrawFn) -> Tokens:
    tokens = draw(st.lists(ids, max_size=3))
    logprobs = tuple(TokenLogprobs(token, draw(floats), draw(tops)) for token in tokens)
    return Tokens(tuple(tokens), draw(texts), draw(st.integers(0, 4)), logprobs)


TRUE = Provenance(AdapterDigest("a" * 64), BaseDigest("b" * 64), "t" * 64, "float32", "build", "replica")


@given(
    started=st.none() | st.lists(scores, max_size=3).map(lambda found: Started(TRUE, "disk", 0.5, 0.25, tuple(found))),
    middle=st.lists(pieces(), max_size=12),
    ends=st.lists(
        st.builds(ChoiceEnd, st.sampled_from(["stop", "length"]), texts, st.none() | ids, st.integers(0, 99)),
        max_size=4,
    ),
)
def test_events_of_one_output_come_back_merged_by_choice(
    started: Started | None, middle: list[Tokens], ends: list[ChoiceEnd]
) -> None:
    finished = Finished(TRUE, tuple(ends), 3, 40, 2, 0.5, 0.25, 8.0, 5, 1) if ends else None
    output = pb.StepOutput(call=1)
    for event in (started, *middle, finished):
        if event is not None:
            add_event(output, event)
    found = list(events_from_proto(pb.StepOutput.FromString(output.SerializeToString())))
    merged: dict[int, Tokens] = {}
    for one in middle:
        before = merged.get(one.choice, Tokens((), "", one.choice))
        merged[one.choice] = Tokens(
            before.token_ids + one.token_ids, before.text + one.text, one.choice, before.logprobs + one.logprobs
        )
    want: list[EngineEvent] = [event for event in (started, finished) if event is not None]
    assert [event for event in found if not isinstance(event, Tokens)] == want
    told = [event for event in found if isinstance(event, Tokens)]
    empty = Tokens((), "")
    assert {one.choice: one for one in told if one != replace(empty, choice=one.choice)} == {
        choice: one for choice, one in merged.items() if one != replace(empty, choice=choice)
    }
    assert len(told) == len({one.choice for one in told})
    if started is not None:
        assert found[0] == started
    if finished is not None:
        assert found[-1] == finished
