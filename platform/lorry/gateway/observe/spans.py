"""The spans of a generation, made of its story when it is over: nothing is done for a trace while it runs.

::

    {operation} {model}          the server's span, a child of the caller's
    |-- gateway.admit            from the request's coming until it was handed to the engine
    |-- queue                    from there to its first step
    |   `-- adapter.load          the part of it that its adapter was not in host memory; none where it was
    |-- prefill                  from the first step to the first token
    `-- decode                   from there to the last token

The engine states durations, so its spans begin when the gateway handed the request over: what the socket between the
two took is not seen. Of a request that ended early the last span that is known ends with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lorry.gateway.observe.story import Story
from lorry.gateway.observe.w3c import span_id

PROVIDER = "lorry"
Value = str | bool | int | float | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """Ids in hex, ``parent`` "" for none; times in Unix nanoseconds. ``error``: the reason it failed with, or ""."""

    name: str
    id: str
    parent: str
    start_ns: int
    end_ns: int
    server: bool = False
    error: str = ""
    attributes: Mapping[str, Value] = field(default_factory=dict)


def spans_of(story: Story) -> list[Span]:
    """The server's span first. Its times enclose those of all others."""
    assert story.trace is not None, "only a request with a trace has spans"
    clock = _Clock(story)
    error = "" if story.outcome == "OK" else story.outcome
    name = f"{story.operation} {story.model}".rstrip()
    root = Span(
        name, span_id(), story.trace.parent, clock.at(0.0), story.ended_ns, True, error, _server_attributes(story)
    )
    whole = story.ended_s
    handed = story.submitted_s
    admitted_error = error if handed is None else ""
    admit = Span(
        "gateway.admit", span_id(), root.id, root.start_ns, clock.at(whole if handed is None else handed),
        error=admitted_error, attributes=_why(admitted_error),
    )  # fmt: skip
    found = [root, admit]
    if handed is None:
        return found
    queued = whole if story.queue_s is None else handed + story.queue_s
    cut = error if story.queue_s is None else ""
    queue = Span("queue", span_id(), root.id, clock.at(handed), clock.at(queued), error=cut, attributes=_why(cut))
    found.append(queue)
    if story.adapter_load_s:
        loaded = clock.at(min(handed + story.adapter_load_s, queued))
        attributes: dict[str, Value] = {"lorry.adapter.tier": story.tier, "lorry.adapter.sha256": story.sha256}
        found.append(Span("adapter.load", span_id(), queue.id, queue.start_ns, loaded, attributes=attributes))
    if story.queue_s is None:
        return found
    told = story.answered_s if story.ttft_s is None else handed + story.ttft_s
    first = max(queued, whole if told is None else told)
    prefill: dict[str, Value] = {"lorry.prompt_tokens": story.prompt_tokens}
    if story.cached_prompt_tokens:
        prefill["lorry.cached_prompt_tokens"] = story.cached_prompt_tokens
    found.append(Span("prefill", span_id(), root.id, clock.at(queued), clock.at(first), attributes=prefill))
    last = whole if story.decode_s is None else first + story.decode_s
    cut = error if story.decode_s is None else ""
    decode: dict[str, Value] = {"lorry.output_tokens": story.output_tokens, **_why(cut)}
    found.append(Span("decode", span_id(), root.id, clock.at(first), clock.at(last), error=cut, attributes=decode))
    return found


class _Clock:
    """Seconds since the request came, as Unix nanoseconds, never after its end."""

    def __init__(self, story: Story) -> None:
        self._end, self._whole = story.ended_ns, story.ended_s

    def at(self, seconds: float) -> int:
        return self._end - max(0, round((self._whole - seconds) * 1e9))


def _why(error: str) -> dict[str, Value]:
    return {"error.type": error} if error else {}


def _server_attributes(story: Story) -> dict[str, Value]:
    found: dict[str, Value | None] = {
        "gen_ai.operation.name": story.operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": story.model or None,
        "gen_ai.request.stream": story.stream or None,
        "gen_ai.request.max_tokens": story.max_tokens or None,
        "gen_ai.request.temperature": story.temperature,
        "gen_ai.request.top_p": story.top_p,
        "gen_ai.request.top_k": story.top_k or None,
        "gen_ai.request.seed": story.seed,
        "gen_ai.request.choice.count": story.n if story.n != 1 else None,
        "gen_ai.response.id": story.request_id or None,
        "gen_ai.response.model": _version_name(story) if story.queue_s is not None else None,
        "gen_ai.response.finish_reasons": story.finish_reasons or None,
        "gen_ai.response.time_to_first_chunk": story.answered_s if story.stream else None,
        "gen_ai.usage.input_tokens": story.prompt_tokens if story.queue_s is not None else None,
        "gen_ai.usage.output_tokens": story.output_tokens if story.queue_s is not None else None,
        "gen_ai.usage.cache_read.input_tokens": story.cached_prompt_tokens or None,
        "error.type": story.outcome if story.outcome != "OK" else None,
        "network.protocol.name": story.transport,
        "lorry.request_id": story.request_id or None,
        "lorry.engine_request_id": story.engine_request_id or None,
        "lorry.tenant": story.tenant or None,
        "lorry.principal": story.principal or None,
        "lorry.adapter": story.adapter or None,
        "lorry.adapter.version": story.version or None,
        "lorry.adapter.sha256": story.sha256 or None,
        "lorry.adapter.tier": story.tier or None,
        "lorry.alias": story.alias or None,
        "lorry.canary": story.canary or None,
        "lorry.base": story.base or None,
        "lorry.base.sha256": story.base_sha256 or None,
        "lorry.outcome": story.outcome,
        "lorry.code": story.code,
        "lorry.replica": story.replica or None,
        "lorry.ledger_id": story.ledger_id or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _version_name(story: Story) -> str | None:
    return (f"{story.adapter}/versions/{story.version}" if story.adapter else story.base) or None


__all__ = ["PROVIDER", "Span", "Value", "spans_of"]
