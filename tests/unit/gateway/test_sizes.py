"""How much a request may ask for: every limit at its last allowed and its first refused value."""

from __future__ import annotations

from typing import Any

import pytest

from lorry.api.v1 import generate_pb2 as pb
from lorry.errors import InvalidRequest
from lorry.gateway.checks import check_fields
from lorry.gateway.sizes import CHOICES_TOKENS_MAX, LOGPROBS_MAX, Room

HUGE = 1 << 19


def max_tokens(
    context: int = HUGE, cap: int | None = None, prompt: int = 1, n: int = 1, **fields: Any
) -> tuple[int, pb.MaxTokensSource.ValueType]:
    output = pb.OutputParams(**{name: fields.pop(name) for name in list(fields) if name.endswith("logprobs")})
    request = pb.GenerateRequest(
        model="m", prompt="x", sampling=pb.SamplingParams(n=n), stopping=pb.StoppingParams(**fields), output=output
    )
    return Room(context, cap).max_tokens(check_fields(request, 100), "prompt", prompt)


def refused(field: str, *words: str, **asked: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        max_tokens(**asked)
    assert [violation.field for violation in caught.value.violations] == [field]
    assert [word for word in words if word not in caught.value.message] == [], caught.value.message


def test_the_context_holds_the_prompt_and_one_choice() -> None:
    assert max_tokens(context=100, prompt=40, n=16) == (60, pb.MAX_TOKENS_SOURCE_CONTEXT)
    assert max_tokens(context=100, prompt=40, n=16, max_tokens=60) == (60, pb.MAX_TOKENS_SOURCE_REQUEST)
    refused("stopping.max_tokens", "61", "60", context=100, prompt=40, max_tokens=61)
    refused("prompt", "100", context=100, prompt=100)
    refused("stopping.min_tokens", "11", "10", context=100, prompt=90, min_tokens=11)


def test_the_cap_is_for_all_choices_together() -> None:
    assert max_tokens(cap=100) == (100, pb.MAX_TOKENS_SOURCE_TENANT_CAP)
    assert max_tokens(cap=100, n=3) == (33, pb.MAX_TOKENS_SOURCE_TENANT_CAP)
    assert max_tokens(cap=100, n=3, max_tokens=33) == (33, pb.MAX_TOKENS_SOURCE_REQUEST)
    refused("stopping.max_tokens", "34", "at most 33", "3 choices", cap=100, n=3, max_tokens=34)
    refused("sampling.n", "3", "cap of 2", cap=2, n=3, max_tokens=1)


def test_all_choices_together_are_bounded_and_one_choice_is_not() -> None:
    assert max_tokens(n=16, max_tokens=CHOICES_TOKENS_MAX // 16)[0] == CHOICES_TOKENS_MAX // 16
    refused("sampling.n", "16", "4097", "65552", "65536", "4096", n=16, max_tokens=CHOICES_TOKENS_MAX // 16 + 1)
    refused("sampling.n", "65536", n=2)
    assert max_tokens()[0] == HUGE - 1


def test_logprobs_are_bounded_over_prompt_and_all_choices() -> None:
    each = LOGPROBS_MAX // 21 // 16
    assert max_tokens(n=16, max_tokens=each, top_logprobs=20)[0] == each
    refused("output.top_logprobs", str(LOGPROBS_MAX), "20", n=16, max_tokens=each + 1, top_logprobs=20)
    assert max_tokens(prompt=LOGPROBS_MAX // 21 + 1, prompt_logprobs=20, max_tokens=1)
    refused("output.prompt_logprobs", str(LOGPROBS_MAX), prompt=LOGPROBS_MAX // 21 + 2, prompt_logprobs=20)
    half = LOGPROBS_MAX // 2
    assert max_tokens(prompt=half + 1, prompt_logprobs=0, top_logprobs=0, max_tokens=half)
    both = {"prompt_logprobs": 0, "top_logprobs": 0}
    refused("output.top_logprobs", str(LOGPROBS_MAX + 1), prompt=half + 2, max_tokens=half, **both)
    assert max_tokens(prompt=2)[0] == HUGE - 2, "who wants no logprobs is not bounded by them"


def test_the_largest_whole_answer_fits_what_clients_take() -> None:
    """The bytes of a pair are as many as LOGPROBS_MAX says at most."""
    tops = [pb.TopLogprob(token_id=(1 << 21) - 1, logprob=-1.5)] * 20
    message = pb.GenerateResponse(choices=[pb.Choice()])
    message.choices[0].logprobs.extend([pb.TokenLogprobs(token_id=(1 << 21) - 1, logprob=-1.5, top=tops)] * 1000)
    assert message.ByteSize() <= 12 * 21 * 1000
    assert 12 * LOGPROBS_MAX < 4 << 20


def test_a_quotas_cap_is_what_a_request_gets_of_all_it_asks_for() -> None:
    def of(quota: int, n: int = 1, cap: int | None = None, **fields: Any) -> tuple[int, pb.MaxTokensSource.ValueType]:
        request = pb.GenerateRequest(
            model="m", prompt="x", sampling=pb.SamplingParams(n=n), stopping=pb.StoppingParams(**fields)
        )
        return Room(100, cap, quota).max_tokens(check_fields(request, 100), "prompt", 40)

    assert of(59) == (59, pb.MAX_TOKENS_SOURCE_TENANT_CAP)
    assert of(60) == (60, pb.MAX_TOKENS_SOURCE_CONTEXT)
    assert of(10, max_tokens=11) == (10, pb.MAX_TOKENS_SOURCE_TENANT_CAP)
    assert of(10, max_tokens=10) == (10, pb.MAX_TOKENS_SOURCE_REQUEST)
    assert of(11, n=2, max_tokens=50) == (5, pb.MAX_TOKENS_SOURCE_TENANT_CAP)
    assert of(20, cap=8) == (8, pb.MAX_TOKENS_SOURCE_TENANT_CAP)
    assert of(5, cap=8) == (5, pb.MAX_TOKENS_SOURCE_TENANT_CAP)
    wrong: tuple[tuple[str, dict[str, Any]], ...] = (
        ("sampling.n", {"n": 11}),
        ("stopping.min_tokens", {"min_tokens": 11}),
    )
    for field, asked in wrong:
        with pytest.raises(InvalidRequest) as caught:
            of(10, **asked)
        assert [violation.field for violation in caught.value.violations] == [field]
