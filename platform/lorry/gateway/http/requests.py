"""OpenAI's requests as GenerateRequests. Ranges are checked behind the service layer, once for all transports; here
only what JSON can get wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lorry.api.v1 import generate_pb2 as pb
from lorry.gateway.checks import Violations
from lorry.gateway.http.extensions import read_extensions
from lorry.gateway.http.fields import UINT32_MAX, Fields, as_number, is_whole, set_if, shown
from lorry.gateway.http.messages import read_messages
from lorry.gateway.http.names import Names
from lorry.gateway.http.served import CHAT, COMPLETIONS, refuse, without_harmless

_SEED_LOW, _SEED_HIGH = -(1 << 63), (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Wanted:
    """``message`` asks the service layer; the rest is how the answer is written. ``names``: what the client calls
    fields."""

    message: pb.GenerateRequest = field(repr=False)
    stream: bool
    include_usage: bool
    logprobs: bool
    names: Names = field(default_factory=Names)


def read_chat(found: Mapping[str, Any], request_id: str) -> Wanted:
    """Of ``/v1/chat/completions``. Raises InvalidRequest with every field that is wrong, by its name here, and
    NotServedYet."""
    bad = Violations()
    fields = Fields(without_harmless(found, CHAT), bad)
    message = pb.GenerateRequest(request_id=request_id)
    read_messages(fields, message.chat, bad)
    own = {"stopping.max_tokens": _read_max_tokens(fields, message)}
    logprobs, top = fields.flag("logprobs"), fields.whole("top_logprobs")
    if top is not None and not logprobs:
        fields.refuse("top_logprobs", "needs `logprobs: true` beside it")
    if logprobs:
        message.output.top_logprobs = top or 0
    return _finish(fields, message, bad, own, bool(logprobs))


def read_completion(found: Mapping[str, Any], request_id: str) -> Wanted:
    """Of ``/v1/completions``. Raises as ``read_chat``."""
    bad = Violations()
    fields = Fields(without_harmless(found, COMPLETIONS), bad)
    message = pb.GenerateRequest(request_id=request_id)
    _read_prompt(fields, message)
    set_if(message.stopping, "max_tokens", fields.whole("max_tokens"))
    top = fields.whole("logprobs")
    set_if(message.output, "top_logprobs", top)
    return _finish(fields, message, bad, {"output.top_logprobs": "logprobs"}, top is not None)


def _finish(
    fields: Fields, message: pb.GenerateRequest, bad: Violations, own: dict[str, str], logprobs: bool
) -> Wanted:
    """What both have."""
    message.model = fields.text("model") or ""
    _read_sampling(fields, message.sampling)
    _read_stop(fields, message)
    read_extensions(fields, message, bad, own)
    stream = bool(fields.flag("stream"))
    include_usage = _read_stream_options(fields, bad, stream)
    fields.finish()
    bad.raise_if_any()
    return Wanted(message, stream, include_usage, logprobs, Names(own))


def _read_sampling(fields: Fields, sampling: pb.SamplingParams) -> None:
    for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty"):
        set_if(sampling, name, fields.number(name))
    set_if(sampling, "n", fields.whole("n"))
    seed = fields.whole("seed", _SEED_LOW, _SEED_HIGH)
    if seed is not None:
        sampling.seed = seed % (1 << 64)
    for key, value in (fields.object("logit_bias") or {}).items():
        bias = as_number(value)
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) <= UINT32_MAX):
            fields.refuse(f"logit_bias.{key[:40]}", "not a token id; send ids as keys")
        elif bias is None:
            fields.refuse(f"logit_bias.{key}", f"{shown(value)}; send a number")
        else:
            sampling.logit_bias[int(key)] = bias


def _read_stop(fields: Fields, message: pb.GenerateRequest) -> None:
    stop = fields.take("stop")
    if stop is None:
        return
    strings = [stop] if isinstance(stop, str) else stop
    if not isinstance(strings, list) or not all(isinstance(one, str) for one in strings):
        fields.refuse("stop", "send a string or a list of strings")
    else:
        message.stopping.stop.extend(strings)


def _read_max_tokens(fields: Fields, message: pb.GenerateRequest) -> str:
    """The name that the client used for it."""
    old, new = fields.whole("max_tokens"), fields.whole("max_completion_tokens")
    if old is not None and new is not None and old != new:
        fields.refuse("max_tokens", f"{old}, and max_completion_tokens is {new}; send one of them")
    set_if(message.stopping, "max_tokens", old if new is None else new)
    return "max_tokens" if new is None else "max_completion_tokens"


def _read_stream_options(fields: Fields, bad: Violations, stream: bool) -> bool:
    """Whether usage is wanted in the stream."""
    options = fields.object("stream_options")
    if options is None:
        return False
    if not stream:
        fields.refuse("stream_options", "needs `stream: true` beside it")
    inside = Fields(options, bad, "stream_options")
    wanted = bool(inside.flag("include_usage"))
    if inside.flag("include_obfuscation"):
        refuse(["stream_options.include_obfuscation"])
    inside.finish()
    return wanted


def _read_prompt(fields: Fields, message: pb.GenerateRequest) -> None:
    """A text, ids, or a list of one of them."""
    prompt = fields.take("prompt")
    if isinstance(prompt, list) and prompt and all(isinstance(one, str | list) for one in prompt):
        if len(prompt) > 1:
            fields.refuse("prompt", f"{len(prompt)} prompts; send each in a request of its own")
            return
        prompt = prompt[0]
    if prompt is None:
        fields.refuse("prompt", "missing; send a string or token ids")
    elif isinstance(prompt, str):
        message.prompt = prompt
    elif isinstance(prompt, list):
        wrong = next((at for at, one in enumerate(prompt) if not is_whole(one) or not 0 <= one <= UINT32_MAX), None)
        if wrong is None:
            message.token_ids.ids.extend(prompt)
            message.token_ids.SetInParent()
        else:
            fields.refuse(f"prompt[{wrong}]", f"{shown(prompt[wrong])}; send token ids")
    else:
        fields.refuse("prompt", f"{shown(prompt)}; send a string or token ids")


__all__ = ["Wanted", "read_chat", "read_completion"]
