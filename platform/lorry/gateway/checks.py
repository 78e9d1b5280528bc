"""Every field of a GenerateRequest against its documented range; all violations are reported at once.

Repeated fields are counted before anything looks at their items, so a request's cost here is bounded.
"""

from __future__ import annotations

import math
import re
import secrets
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from google.protobuf.duration_pb2 import Duration

from lorry.api.v1 import generate_pb2 as pb
from lorry.errors import FieldViolation, InvalidRequest
from lorry.request import CHOICES_MAX, TOP_LOGPROBS_MAX, OutputParams, SamplingParams

STOPS_MAX = 16
STOP_CHARS_MAX = 256
STOP_IDS_MAX = 256
BIASES_MAX = 1024
BIAS_MAX = 100.0
REPETITION_MAX = 10.0
PENALTY_MAX = 2.0
"""Of frequency and presence, either way."""
SCOPE_CHARS_MAX = 128
STICKY_CHARS_MAX = 128
LABELS_MAX = 16
LABEL_CHARS_MAX = 128
"""Of a label's value."""
MESSAGES_MAX = 1024
"""Of one chat."""
INPUT_BYTES_MAX = 2 << 20
"""Of a prompt, or of a chat with its roles: what the tokenizer is given at most."""
CONTEXT_MAX = 1 << 20
"""Token ids, where nothing says how many the model takes."""
VIOLATIONS_MAX = 64
"""More than a status has room for; what comes after them is not looked for."""
ROLES = ("system", "user", "assistant")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_LABEL_KEY = re.compile(r"[a-z0-9_.-]{1,63}")
_DURATION_MAX_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class CheckedFields:
    """What does not depend on the prompt. ``max_tokens`` None is unset."""

    sampling: SamplingParams
    max_tokens: int | None
    min_tokens: int
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    queue_timeout_s: float | None
    ttft_timeout_s: float | None
    reject_cold: bool
    n: int
    output: OutputParams
    cache_scope: str
    labels: dict[str, str] = field(default_factory=dict)


class Violations:
    """Collects, then raises InvalidRequest with all of them, or the first ``VIOLATIONS_MAX``."""

    def __init__(self) -> None:
        self._found: list[FieldViolation] = []

    def add(self, field: str, description: str) -> None:
        if not self.full:
            self._found.append(FieldViolation(field, description))

    @property
    def full(self) -> bool:
        return len(self._found) >= VIOLATIONS_MAX

    def raise_if_any(self) -> None:
        if self._found:
            message = "; ".join(f"{violation.field}: {violation.description}" for violation in self._found)
            raise InvalidRequest(message, violations=self._found)


def check_fields(request: pb.GenerateRequest, vocabulary: int, context_tokens: int = CONTEXT_MAX) -> CheckedFields:
    """Raises InvalidRequest naming each field that is out of its range, its value and what to send instead."""
    bad = Violations()
    if request.request_id and not is_request_id(request.request_id):
        bad.add("request_id", f"{request.request_id[:80]!r}; use 1 to 128 of A-Z a-z 0-9 . _ : - or leave it empty")
    _check_input(request, vocabulary, context_tokens, bad)
    sampling = _sampling(request.sampling, vocabulary, bad)
    n = request.sampling.n if request.sampling.HasField("n") else 1
    if not 1 <= n <= CHOICES_MAX:
        bad.add("sampling.n", f"{n}; send 1 to {CHOICES_MAX}, or leave it unset for 1")
    stopping = request.stopping
    max_tokens = stopping.max_tokens if stopping.HasField("max_tokens") else None
    if max_tokens == 0:
        bad.add("stopping.max_tokens", "0; ask for at least 1, or leave it unset for the rest of the context")
    if max_tokens is not None and stopping.min_tokens > max_tokens:
        bad.add("stopping.min_tokens", f"{stopping.min_tokens} is above max_tokens {max_tokens}; lower it")
    if len(stopping.stop) > STOPS_MAX:
        bad.add("stopping.stop", f"{len(stopping.stop)} strings; send at most {STOPS_MAX}")
    for index, stop in enumerate(stopping.stop[:STOPS_MAX]):
        if not 1 <= len(stop) <= STOP_CHARS_MAX:
            bad.add(f"stopping.stop[{index}]", f"{len(stop)} characters; send 1 to {STOP_CHARS_MAX}")
    if len(stopping.stop_token_ids) > STOP_IDS_MAX:
        bad.add("stopping.stop_token_ids", f"{len(stopping.stop_token_ids)} ids; send at most {STOP_IDS_MAX}")
    else:
        _check_ids("stopping.stop_token_ids", stopping.stop_token_ids, vocabulary, bad)
    queue_timeout_s = _timeout("queue_timeout", request, bad)
    ttft_timeout_s = _timeout("ttft_timeout", request, bad)
    output = _output(request.output, bad)
    if len(request.cache_scope) > SCOPE_CHARS_MAX:
        bad.add("cache_scope", f"{len(request.cache_scope)} characters; send at most {SCOPE_CHARS_MAX}")
    if request.cold_load not in pb.ColdLoad.values():
        bad.add("cold_load", f"{request.cold_load} is no value of ColdLoad; use COLD_LOAD_WAIT or COLD_LOAD_REJECT")
    if len(request.sticky_key) > STICKY_CHARS_MAX:
        bad.add("sticky_key", f"{len(request.sticky_key)} characters; send at most {STICKY_CHARS_MAX}")
    _check_labels(request, bad)
    bad.raise_if_any()
    return CheckedFields(
        sampling,
        max_tokens,
        stopping.min_tokens,
        tuple(stopping.stop),
        tuple(stopping.stop_token_ids),
        queue_timeout_s,
        ttft_timeout_s,
        request.cold_load == pb.COLD_LOAD_REJECT,
        n,
        output,
        request.cache_scope,
        dict(request.labels),
    )


def check_text(message: pb.GenerateRequest | pb.CountTokensRequest, bad: Violations) -> None:
    """``prompt`` or ``chat``, whichever is set."""
    match message.WhichOneof("input"):
        case "prompt":
            if not message.prompt:
                bad.add("prompt", "empty; send at least one character")
            elif len(message.prompt.encode()) > INPUT_BYTES_MAX:
                bad.add("prompt", f"above {INPUT_BYTES_MAX} bytes; shorten it")
        case "chat":
            _check_chat(message.chat, bad)


def _check_chat(chat: pb.Chat, bad: Violations) -> None:
    count = len(chat.messages)
    if not count:
        bad.add("chat.messages", "empty; send at least one message")
    if count > MESSAGES_MAX:
        bad.add("chat.messages", f"{count} messages; send at most {MESSAGES_MAX}")
        return
    if chat.ByteSize() > INPUT_BYTES_MAX:
        bad.add("chat.messages", f"{chat.ByteSize()} bytes; send at most {INPUT_BYTES_MAX}")
        return
    for index, message in enumerate(chat.messages):
        if bad.full:
            return
        if message.role not in ROLES:
            bad.add(f"chat.messages[{index}].role", f"{message.role[:80]!r}; use one of {', '.join(ROLES)}")


def _check_input(request: pb.GenerateRequest, vocabulary: int, context_tokens: int, bad: Violations) -> None:
    match request.WhichOneof("input"):
        case None:
            bad.add("prompt", "no input; send exactly one of prompt, chat and token_ids")
        case "token_ids":
            count = len(request.token_ids.ids)
            if not count:
                bad.add("token_ids", "empty; send at least one id")
            if count >= context_tokens:
                bad.add("token_ids", f"{count} ids leave no room in the model's context of {context_tokens}; send less")
                return
            _check_ids("token_ids", request.token_ids.ids, vocabulary, bad)
        case _:
            check_text(request, bad)


def _sampling(sampling: pb.SamplingParams, vocabulary: int, bad: Violations) -> SamplingParams:
    default = SamplingParams()
    temperature = sampling.temperature if sampling.HasField("temperature") else default.temperature
    top_p = sampling.top_p if sampling.HasField("top_p") else default.top_p
    top_k = sampling.top_k if sampling.HasField("top_k") else default.top_k
    min_p = sampling.min_p if sampling.HasField("min_p") else default.min_p
    if not (math.isfinite(temperature) and 0 <= temperature <= 100):
        bad.add("sampling.temperature", f"{temperature:g}; send 0 (greedy) to 100")
    if not (math.isfinite(top_p) and 0 < top_p <= 1):
        bad.add("sampling.top_p", f"{top_p:g}; send more than 0 and at most 1")
    if top_k > vocabulary:
        bad.add("sampling.top_k", f"{top_k}; send 0 (all) to {vocabulary}, the vocabulary's size")
    if not (math.isfinite(min_p) and 0 <= min_p <= 1):
        bad.add("sampling.min_p", f"{min_p:g}; send 0 to 1")
    seed = sampling.seed if sampling.HasField("seed") else secrets.randbits(63)
    repetition = sampling.repetition_penalty if sampling.HasField("repetition_penalty") else default.repetition_penalty
    if not (math.isfinite(repetition) and 0 < repetition <= REPETITION_MAX):
        bad.add("sampling.repetition_penalty", f"{repetition:g}; send more than 0 (1 is none) and at most 10")
    for name in ("frequency_penalty", "presence_penalty"):
        penalty = getattr(sampling, name)
        if not (math.isfinite(penalty) and abs(penalty) <= PENALTY_MAX):
            bad.add(f"sampling.{name}", f"{penalty:g}; send -2 to 2 (0 is none)")
    return SamplingParams(
        temperature,
        top_p,
        top_k,
        min_p,
        seed,
        repetition,
        sampling.frequency_penalty,
        sampling.presence_penalty,
        _logit_bias(sampling, vocabulary, bad),
    )


def _logit_bias(sampling: pb.SamplingParams, vocabulary: int, bad: Violations) -> tuple[tuple[int, float], ...]:
    count = len(sampling.logit_bias)
    if count > BIASES_MAX:
        bad.add("sampling.logit_bias", f"{count} ids; send at most {BIASES_MAX}")
        return ()
    pairs = tuple(sorted(sampling.logit_bias.items()))
    for token, bias in pairs:
        if token >= vocabulary:
            bad.add(f"sampling.logit_bias[{token}]", f"{token} is not below the vocabulary's size, {vocabulary}")
        if not (math.isfinite(bias) and abs(bias) <= BIAS_MAX):
            bad.add(f"sampling.logit_bias[{token}]", f"{bias:g}; send -100 to 100")
    return pairs


def _output(output: pb.OutputParams, bad: Violations) -> OutputParams:
    top = output.top_logprobs if output.HasField("top_logprobs") else None
    prompt = output.prompt_logprobs if output.HasField("prompt_logprobs") else None
    for name, count in (("output.top_logprobs", top), ("output.prompt_logprobs", prompt)):
        if count is not None and count > TOP_LOGPROBS_MAX:
            bad.add(name, f"{count}; send 0 to {TOP_LOGPROBS_MAX}, or leave it unset for none")
    return OutputParams(top, prompt)


def _check_labels(request: pb.GenerateRequest, bad: Violations) -> None:
    """They are copied into ledgers and files that people open."""
    if len(request.labels) > LABELS_MAX:
        bad.add("labels", f"{len(request.labels)} labels; send at most {LABELS_MAX}")
        return
    for key, value in sorted(request.labels.items()):
        if not _LABEL_KEY.fullmatch(key):
            bad.add(f"labels[{key[:80]!r}]", "is no key; use 1 to 63 of a-z 0-9 _ . -")
        elif len(value) > LABEL_CHARS_MAX:
            bad.add(f"labels[{key}]", f"{len(value)} characters; send at most {LABEL_CHARS_MAX}")
        elif any(unicodedata.category(one) in ("Cc", "Zl", "Zp") for one in value):
            bad.add(f"labels[{key}]", "has a control character or a line break; send plain text")


def _timeout(
    field: Literal["queue_timeout", "ttft_timeout"], request: pb.GenerateRequest, bad: Violations
) -> float | None:
    if not request.HasField(field):
        return None
    seconds = _seconds(getattr(request, field))
    if not 0 < seconds <= _DURATION_MAX_S:
        bad.add(field, f"{seconds:g} s; send more than 0 s and at most a day")
    return seconds


def _check_ids(field: str, ids: Iterable[int], vocabulary: int, bad: Violations) -> None:
    found = next(((at, i) for at, i in enumerate(ids) if i >= vocabulary), None)
    if found is not None:
        bad.add(f"{field}[{found[0]}]", f"{found[1]} is not below the vocabulary's size, {vocabulary}")


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9


def is_request_id(text: str) -> bool:
    """Whether a client may call a request so."""
    return _REQUEST_ID.fullmatch(text) is not None


__all__ = [
    "BIASES_MAX",
    "BIAS_MAX",
    "CONTEXT_MAX",
    "INPUT_BYTES_MAX",
    "LABELS_MAX",
    "LABEL_CHARS_MAX",
    "MESSAGES_MAX",
    "PENALTY_MAX",
    "REPETITION_MAX",
    "ROLES",
    "SCOPE_CHARS_MAX",
    "STICKY_CHARS_MAX",
    "STOPS_MAX",
    "STOP_CHARS_MAX",
    "STOP_IDS_MAX",
    "VIOLATIONS_MAX",
    "CheckedFields",
    "Violations",
    "check_fields",
    "check_text",
    "is_request_id",
]
