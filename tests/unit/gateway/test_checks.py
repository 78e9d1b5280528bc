"""What a request may hold before anything looks at its items."""

from __future__ import annotations

import math
from typing import Any

import pytest

from lorry.api.v1 import generate_pb2 as pb
from lorry.errors import InvalidRequest
from lorry.gateway.checks import (
    BIASES_MAX,
    INPUT_BYTES_MAX,
    MESSAGES_MAX,
    STOP_IDS_MAX,
    VIOLATIONS_MAX,
    Violations,
    check_fields,
    check_text,
)
from lorry.request import OutputParams

VOCABULARY, CONTEXT = 320, 64


def refused(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        check_fields(pb.GenerateRequest(model="models/m", **fields), VOCABULARY, CONTEXT)
    return caught.value


def chat(count: int, role: str = "user", content: str = "x") -> pb.Chat:
    return pb.Chat(messages=[pb.ChatMessage(role=role, content=content)] * count)


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("chat.messages", {"chat": chat(MESSAGES_MAX + 1, role="wizard")}),
        ("chat.messages", {"chat": chat(2, content="x" * (INPUT_BYTES_MAX // 2))}),
        ("prompt", {"prompt": "é" * (INPUT_BYTES_MAX // 2 + 1)}),
        ("token_ids", {"token_ids": pb.TokenIds(ids=[VOCABULARY] * CONTEXT)}),
        (
            "stopping.stop_token_ids",
            {"prompt": "x", "stopping": pb.StoppingParams(stop_token_ids=[VOCABULARY] * (STOP_IDS_MAX + 1))},
        ),
        (
            "sampling.logit_bias",
            {"prompt": "x", "sampling": pb.SamplingParams(logit_bias=dict.fromkeys(range(BIASES_MAX + 1), 999.0))},
        ),
    ],
    ids=["messages", "bytes of a chat", "bytes of a prompt", "ids", "stop ids", "biases"],
)
def test_what_is_too_much_is_refused_as_a_whole_and_its_items_are_not_looked_at(
    field: str, fields: dict[str, Any]
) -> None:
    assert [violation.field for violation in refused(**fields).violations] == [field]


def test_as_much_as_is_allowed_passes() -> None:
    stopping = pb.StoppingParams(stop_token_ids=[5] * STOP_IDS_MAX)
    for fields in (
        {"chat": chat(MESSAGES_MAX)},
        {"prompt": "é" * (INPUT_BYTES_MAX // 2)},
        {"token_ids": pb.TokenIds(ids=[VOCABULARY - 1] * (CONTEXT - 1))},
    ):
        request = pb.GenerateRequest(model="models/m", stopping=stopping, **fields)
        check_fields(request, VOCABULARY, CONTEXT)


def test_no_more_violations_than_a_status_can_carry() -> None:
    found = refused(chat=chat(MESSAGES_MAX, role="wizard"), sampling=pb.SamplingParams(top_p=2)).violations
    assert len(found) == VIOLATIONS_MAX
    assert found[-1].field == f"chat.messages[{VIOLATIONS_MAX - 1}].role"


def test_what_is_unset_is_none_or_the_default() -> None:
    fields = check_fields(pb.GenerateRequest(model="models/m", prompt="x"), VOCABULARY, CONTEXT)
    assert (fields.n, fields.output, fields.cache_scope) == (1, OutputParams(), "")
    assert fields.queue_timeout_s is fields.ttft_timeout_s is None
    assert fields.sampling.plain


def test_zeros_that_are_sent_are_zeros_and_not_defaults() -> None:
    sampling = pb.SamplingParams(frequency_penalty=0, presence_penalty=0, logit_bias={0: 0.0})
    output = pb.OutputParams(top_logprobs=0, prompt_logprobs=0)
    request = pb.GenerateRequest(model="models/m", prompt="x", sampling=sampling, output=output)
    fields = check_fields(request, VOCABULARY, CONTEXT)
    assert fields.output == OutputParams(0, 0)
    assert fields.sampling.logit_bias == ((0, 0.0),)


def test_each_bias_that_is_wrong_is_named_up_to_the_last_that_fits() -> None:
    biases = {VOCABULARY: 1.0, 3: math.nan, 5: 100.0, VOCABULARY + 1: math.inf}
    found = refused(prompt="x", sampling=pb.SamplingParams(logit_bias=biases)).violations
    assert [violation.field for violation in found] == [
        "sampling.logit_bias[3]",
        f"sampling.logit_bias[{VOCABULARY}]",
        f"sampling.logit_bias[{VOCABULARY + 1}]",
        f"sampling.logit_bias[{VOCABULARY + 1}]",
    ]
    many = pb.SamplingParams(logit_bias=dict.fromkeys(range(BIASES_MAX), 101.0))
    assert len(refused(prompt="x", sampling=many).violations) == VIOLATIONS_MAX


def test_counting_tokens_is_bounded_alike() -> None:
    bad = Violations()
    check_text(pb.CountTokensRequest(chat=chat(MESSAGES_MAX + 1)), bad)
    with pytest.raises(InvalidRequest, match=str(MESSAGES_MAX)):
        bad.raise_if_any()


GOOD_LABELS = {"a" * 63: "", "team.x_y-0": "é" * 128, "emoji": "👩‍🚒"} | {f"k{i}": "v" for i in range(13)}


def test_labels_and_the_sticky_key_pass_at_their_limits() -> None:
    found = check_fields(pb.GenerateRequest(prompt="x", labels=GOOD_LABELS, sticky_key="é" * 128), VOCABULARY, CONTEXT)
    assert found.labels == GOOD_LABELS


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("labels", {"labels": GOOD_LABELS | {"more": "x"}}),
        ("labels['']", {"labels": {"": "x"}}),
        ("labels['Team']", {"labels": {"Team": "x"}}),
        ("labels['a\\n']", {"labels": {"a\n": "x"}}),
        (f"labels['{'a' * 64}']", {"labels": {"a" * 64: "x"}}),
        ("labels[a]", {"labels": {"a": "x" * 129}}),
        ("labels[a]", {"labels": {"a": "x\0"}}),
        ("labels[a]", {"labels": {"a": "\r\n"}}),
        ("labels[a]", {"labels": {"a": "\x85"}}),
        ("labels[a]", {"labels": {"a": "\u2028"}}),
        ("sticky_key", {"sticky_key": "x" * 129}),
    ],
)
def test_labels_and_sticky_keys_beyond_them_are_refused(field: str, fields: dict[str, Any]) -> None:
    assert [violation.field for violation in refused(prompt="x", **fields).violations] == [field]
