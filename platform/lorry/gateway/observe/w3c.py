"""W3C trace context: what a caller sent of its trace, read strictly; what is malformed counts as not sent."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from dataclasses import dataclass

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
STATE_CHARS = 512
STATE_MEMBERS = 32
_PARENT_CHARS = 256
_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[\x21-\x7e]*)?")
_MEMBER = re.compile(
    r"(?:[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
    r"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
_RANDOM_BITS = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class TraceContext:
    """Ids in lower-case hex. ``parent`` is the caller's span, "" where the trace begins here. ``state`` is the caller's
    tracestate, as it may be passed on."""

    trace_id: str
    parent: str
    sampled: bool
    state: str = ""


def headers_of(pairs: Iterable[tuple[str, str | bytes]]) -> tuple[str, str]:
    """traceparent and tracestate among a call's headers, "" for none; a traceparent that came twice is none."""
    parents: list[str] = []
    states: list[str] = []
    for key, value in pairs:
        name = key.lower()
        if name in (TRACEPARENT, TRACESTATE) and isinstance(value, str):
            (parents if name == TRACEPARENT else states).append(value)
    return parents[0] if len(parents) == 1 else "", ",".join(states)


def read(parent: str, state: str) -> TraceContext | None:
    """None where there is none, or none that could be one."""
    if not parent or len(parent) > _PARENT_CHARS or (found := _PARENT.fullmatch(parent)) is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more is not None) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & 1), _read_state(state))


def begin(ratio: float) -> TraceContext:
    """A trace of our own; so much of them is sampled."""
    number = 0
    while not number:
        number = random.getrandbits(128)
    return TraceContext(f"{number:032x}", "", (number & _RANDOM_BITS) < ratio * (1 << 63))


def span_id() -> str:
    number = 0
    while not number:
        number = random.getrandbits(64)
    return f"{number:016x}"


def _read_state(text: str) -> str:
    """ "" for one that breaks the rules in any place."""
    if not text or len(text) > STATE_CHARS:
        return ""
    members = [member.strip(" \t") for member in text.split(",")]
    members = [member for member in members if member]
    keys = [member.partition("=")[0] for member in members]
    if len(members) > STATE_MEMBERS or len(set(keys)) < len(keys) or not all(map(_MEMBER.fullmatch, members)):
        return ""
    return ",".join(members)


__all__ = ["TRACEPARENT", "TRACESTATE", "TraceContext", "begin", "headers_of", "read", "span_id"]
