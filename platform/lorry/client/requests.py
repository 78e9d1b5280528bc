"""Python arguments as a GenerateRequest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

from lorry.api.v1 import generate_pb2 as pb
from lorry.errors import InvalidRequest

_COLD_LOAD: Mapping[str, pb.ColdLoad.ValueType] = {"wait": pb.COLD_LOAD_WAIT, "reject": pb.COLD_LOAD_REJECT}
_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "n",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
)
_STOPPING = ("max_tokens", "min_tokens", "stop", "stop_token_ids", "include_stop", "ignore_eos")
_OUTPUT = ("top_logprobs", "prompt_logprobs", "flush")

Message = Mapping[str, str]
"""``{"role": "user", "content": "..."}``"""


class GenerateParams(TypedDict, total=False):
    """Meanings, ranges and defaults are those of ``generate.proto``; what is left out is the server's default.

    ``n``: choices. ``logit_bias``: by token id. ``top_logprobs``, ``prompt_logprobs``: 0 is the token's own alone.
    ``want_token_ids``: ids beside the text. ``flush``: every token at once. ``cold_load``: wait for an adapter
    that is not loaded, or have the request rejected (AdapterCold). ``cache_scope``: within it alone are cached
    prefixes shared. ``sticky_key``: equal keys get equal targets of an alias with a canary. ``labels``: copied into the
    usage ledger.
    """

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    n: int
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    logit_bias: Mapping[int, float]
    max_tokens: int
    min_tokens: int
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    include_stop: bool
    ignore_eos: bool
    expected_sha256: str
    request_id: str
    cold_load: Literal["wait", "reject"]
    queue_timeout_s: float
    ttft_timeout_s: float
    cache_scope: str
    sticky_key: str
    labels: Mapping[str, str]
    top_logprobs: int
    prompt_logprobs: int
    want_token_ids: bool
    flush: bool


def build_request(
    model: str,
    prompt: str | None,
    messages: Sequence[Message] | None,
    token_ids: Sequence[int] | None,
    params: GenerateParams,
) -> pb.GenerateRequest:
    """Raises InvalidRequest for what cannot even be written down; the server judges the rest."""
    if sum(given is not None for given in (prompt, messages, token_ids)) != 1:
        raise InvalidRequest.field("prompt", "give exactly one of prompt, messages and token_ids")
    unknown = set(params) - GenerateParams.__optional_keys__
    if unknown:
        raise TypeError(f"unknown parameters: {', '.join(sorted(unknown))}")
    given = dict(params)
    if isinstance(given.get("stop"), str):
        given["stop"] = [given["stop"]]
    try:
        # mypy cannot see which parameter each name of a TypedDict is.
        request = pb.GenerateRequest(
            model=model,
            request_id=params.get("request_id", ""),
            expected_sha256=params.get("expected_sha256", ""),
            sampling=pb.SamplingParams(**{name: given[name] for name in _SAMPLING if name in given}),  # type: ignore[arg-type]  # above
            stopping=pb.StoppingParams(**{name: given[name] for name in _STOPPING if name in given}),  # type: ignore[arg-type]  # above
            output=pb.OutputParams(
                token_ids=params.get("want_token_ids"),
                **{name: given[name] for name in _OUTPUT if name in given},  # type: ignore[arg-type]  # above
            ),
            cold_load=_COLD_LOAD[params.get("cold_load", "wait")],
            cache_scope=params.get("cache_scope", ""),
            sticky_key=params.get("sticky_key", ""),
            labels=params.get("labels", {}),
        )
        if "queue_timeout_s" in params:
            request.queue_timeout.FromNanoseconds(round(params["queue_timeout_s"] * 1e9))
        if "ttft_timeout_s" in params:
            request.ttft_timeout.FromNanoseconds(round(params["ttft_timeout_s"] * 1e9))
        if prompt is not None:
            request.prompt = prompt
        elif messages is not None:
            request.chat.CopyFrom(_chat(messages))
        else:
            request.token_ids.CopyFrom(pb.TokenIds(ids=token_ids))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise InvalidRequest(f"request: a value does not fit its field: {error}") from error
    return request


def _chat(messages: Sequence[Message]) -> pb.Chat:
    return pb.Chat(messages=[pb.ChatMessage(role=m["role"], content=m["content"]) for m in messages])


def count_request(model: str, prompt: str | None, messages: Sequence[Message] | None) -> pb.CountTokensRequest:
    """Raises InvalidRequest unless exactly one of ``prompt`` and ``messages`` is given."""
    if (prompt is None) == (messages is None):
        raise InvalidRequest.field("prompt", "give exactly one of prompt and messages")
    if prompt is not None:
        return pb.CountTokensRequest(model=model, prompt=prompt)
    return pb.CountTokensRequest(model=model, chat=_chat(messages or ()))


__all__ = ["GenerateParams", "Message", "build_request", "count_request"]
