"""The engine's typed events: the one source that counters, and later metrics, usage and traces, derive from.

They are emitted on the step loop's thread, in order; a listener must be quick and must not raise.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lorry.ids import AdapterKey, RequestId, SlotId, TenantId

RECENT_STEPS = 256


@dataclass(frozen=True, slots=True)
class RequestAdmitted:
    """It waits or runs from now on, and ends with RequestEnded."""

    request: RequestId
    tenant: TenantId
    adapter: AdapterKey | None
    prompt_tokens: int
    at: float


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """It never waited. ``reason`` is one of lorry.errors."""

    request: RequestId
    tenant: TenantId
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class RequestStarted:
    """Its first token is there. ``adapter`` is what the slot table says."""

    request: RequestId
    adapter: AdapterKey | None
    tier: str
    queue_s: float
    adapter_load_s: float
    at: float


@dataclass(frozen=True, slots=True)
class RequestEnded:
    """Once, with its last choice or its first error. ``outcome``: ``stop`` or ``length``, of choice 0, or a reason of
    lorry.errors. ``output_tokens`` of all choices; 0 with an error."""

    request: RequestId
    outcome: str
    output_tokens: int
    at: float


@dataclass(frozen=True, slots=True)
class AdapterLoaded:
    """Copied to the device; ``ok`` False where the slot stayed empty."""

    slot: SlotId
    adapter: AdapterKey
    ok: bool
    at: float


@dataclass(frozen=True, slots=True)
class StepRan:
    """``seconds`` until its results were there; tokens by kind; distinct adapters among the rows, the base as one."""

    step: int
    seconds: float
    prefill_tokens: int
    decode_tokens: int
    sequences: int
    distinct_adapters: int
    at: float


EngineOccurrence = RequestAdmitted | RequestRefused | RequestStarted | RequestEnded | AdapterLoaded | StepRan
Listener = Callable[[EngineOccurrence], None]


class EngineCounters:
    """A listener: counts since start, and the last steps' mixes."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._outcomes: Counter[str] = Counter()
        self._distinct: deque[int] = deque(maxlen=RECENT_STEPS)

    def __call__(self, event: EngineOccurrence) -> None:
        match event:
            case StepRan():
                self._counts["steps"] += 1
                self._counts["prefill_tokens"] += event.prefill_tokens
                self._counts["decode_tokens"] += event.decode_tokens
                self._distinct.append(event.distinct_adapters)
            case RequestEnded():
                self._outcomes[event.outcome] += 1
                self._counts["output_tokens"] += event.output_tokens
            case RequestRefused():
                self._outcomes[event.reason] += 1
            case AdapterLoaded():
                self._counts["loads" if event.ok else "failed_loads"] += 1
            case RequestAdmitted():
                self._counts["admitted"] += 1
            case RequestStarted():
                self._counts["started"] += 1

    @property
    def outcomes(self) -> Mapping[str, int]:
        """Requests that ended or were refused; a live view."""
        return self._outcomes

    def state(self) -> dict[str, Any]:
        """Bounded JSON."""
        return {**self._counts, "outcomes": dict(self._outcomes), "distinct_adapters": list(self._distinct)}


__all__ = [
    "RECENT_STEPS",
    "AdapterLoaded",
    "EngineCounters",
    "EngineOccurrence",
    "Listener",
    "RequestAdmitted",
    "RequestEnded",
    "RequestRefused",
    "RequestStarted",
    "StepRan",
]
