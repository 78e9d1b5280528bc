"""What an engine counts, as its gateway is told of it. No torch, no grpc."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lorry.histogram import MIX, Histogram, Spread

COMPUTED, CACHED, OUTPUT = "computed", "cached", "output"
"""Kinds of tokens: of prompts, through the model (and output again, after a preemption); of prompts, found in the
prefix cache instead; sampled."""
PREFILL, DECODE = "prefill", "decode"
"""Kinds of steps: with tokens of a prompt among its own, and without."""


def _no_mix() -> Spread:
    return Histogram(MIX).spread()


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """Counts are since the process started, at one moment between two steps. Keys of the mappings are few and the
    code's own: never an adapter, a tenant or a request.

    ``waiting`` and ``running`` are sequences (choices of requests). ``outcomes``: ended and refused requests, ``stop``
    and ``length`` or a reason of lorry.errors. ``tokens``: COMPUTED, CACHED, OUTPUT. ``steps``: seconds by PREFILL and
    DECODE. ``mix``: distinct adapters among a step's rows, the base as one. ``pages``: KV pages, ``used`` (of running
    sequences), ``promised`` (to them), ``cached`` (prefixes that nobody uses), ``pending`` (free when a step is done),
    ``free``. ``occupancy``: the part of what KV pages could have now that running sequences have or were promised.
    ``slots``: ``pinned`` (somebody runs on it), ``held`` (somebody waits for it), ``idle``, ``empty``. ``hits``: where
    the adapters of started requests were when these came. ``loads``: seconds by the tier that the adapter was in,
    ``object_store`` and ``disk`` into host memory, ``host`` into a slot. ``fetching``: loads into host memory under
    way. ``evictions``: adapters that had to make room, by the tier that they left. ``integrity``: ``slot``,
    ``non_finite``, ``provenance``, ``cache_folder``. ``ranks``: rank rows of adapters in slots, ``used`` (their largest
    rank) and ``padding`` (what rounding up to whole chunks adds). ``bytes``: memory by what has it."""

    build: str = ""
    dtype: str = ""
    started_at: float = 0.0
    cpu_s: float = 0.0
    waiting: int = 0
    running: int = 0
    outcomes: Mapping[str, int] = field(default_factory=dict)
    tokens: Mapping[str, int] = field(default_factory=dict)
    steps: Mapping[str, Spread] = field(default_factory=dict)
    mix: Spread = field(default_factory=_no_mix)
    pages: Mapping[str, int] = field(default_factory=dict)
    page_tokens: int = 0
    occupancy: float = 0.0
    preemptions: int = 0
    slots: Mapping[str, int] = field(default_factory=dict)
    hits: Mapping[str, int] = field(default_factory=dict)
    loads: Mapping[str, Spread] = field(default_factory=dict)
    failed_loads: int = 0
    fetching: int = 0
    evictions: Mapping[str, int] = field(default_factory=dict)
    prefix_evictions: int = 0
    integrity: Mapping[str, int] = field(default_factory=dict)
    ranks: Mapping[str, int] = field(default_factory=dict)
    bytes: Mapping[str, int] = field(default_factory=dict)


__all__ = ["CACHED", "COMPUTED", "DECODE", "OUTPUT", "PREFILL", "EngineMetrics"]
