"""Counts the step loop's work for metrics: a few additions a step, and one reading a scrape."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from lorry.adapters.tier_views import TierCounts
from lorry.engine.events import EngineCounters, EngineOccurrence, RequestStarted, StepRan
from lorry.engine.metrics import CACHED, COMPUTED, DECODE, OUTPUT, PREFILL, EngineMetrics
from lorry.errors import NonFiniteLogits, ProvenanceMismatch, SlotIntegrity
from lorry.histogram import MIX, STEP_S, Histogram
from lorry.ids import SequenceId
from lorry.scheduler.plan import StepPlan, StepResult

_BYTES = ("budget", "used", "backed", "adapters")


class Loaded(Protocol):
    """The runner (``lorry.engine.plan_runner.PlanRunner``)."""

    load_seconds: Histogram

    def rank_rows(self) -> tuple[int, int]: ...


class Meter:
    """A listener of the step loop, on its thread. ``tiers``: the host and disk tiers' own counts, from any thread."""

    def __init__(self) -> None:
        self._started_at = time.time()
        self._tokens = {COMPUTED: 0, CACHED: 0, OUTPUT: 0}
        self._steps = {PREFILL: Histogram(STEP_S), DECODE: Histogram(STEP_S)}
        self._mix = Histogram(MIX)
        self._hits: Counter[str] = Counter()
        self._failed_loads = 0
        self._lost = 0
        self._new: set[SequenceId] = set()
        self.tiers: Callable[[], TierCounts] = TierCounts

    def __call__(self, event: EngineOccurrence) -> None:
        if isinstance(event, StepRan):
            self._steps[PREFILL if event.prefill_tokens else DECODE].observe(event.seconds)
            self._mix.observe(event.distinct_adapters)
            self._tokens[COMPUTED] += event.prefill_tokens
        elif isinstance(event, RequestStarted):
            self._hits[event.tier] += 1

    def note(self, plan: StepPlan, result: StepResult) -> None:
        """A step that ran."""
        tokens = self._tokens
        tokens[OUTPUT] += sum(len(row.tokens) for row in result.results)
        self._failed_loads += len(result.failed_loads)
        self._lost += len(result.lost)
        # A sequence's first row, which may come some plans later, begins behind what the prefix cache had of it.
        new = self._new
        new.difference_update(plan.finished)
        new.update(one.sequence for one in plan.new if len(one.token_ids) == one.prompt_tokens)
        if new:
            for row in plan.sequences:
                if row.sequence in new:
                    new.discard(row.sequence)
                    tokens[CACHED] += row.start

    def read(self, scheduler: Mapping[str, Any], runner: Loaded, counters: EngineCounters) -> EngineMetrics:
        """``scheduler`` is ``Scheduler.state``."""
        tiers, outcomes, prefixes = self.tiers(), counters.outcomes, scheduler["prefix_cache"]
        pages, memory, slots = scheduler["pages"], scheduler["bytes"], Counter(map(_use_of, scheduler["slots"]))
        used, padding = runner.rank_rows()
        return EngineMetrics(
            started_at=self._started_at,
            cpu_s=time.process_time(),
            waiting=scheduler["waiting"] + scheduler["following"],
            running=scheduler["running"],
            outcomes=dict(outcomes),
            tokens=dict(self._tokens),
            steps={kind: steps.spread() for kind, steps in self._steps.items()},
            mix=self._mix.spread(),
            pages={
                "used": pages["used"] - prefixes["unused"],
                "promised": pages["promised"],
                "cached": prefixes["unused"],
                "pending": pages["pending"],
                "free": pages["free"] - pages["promised"],
            },
            page_tokens=scheduler["page_tokens"],
            occupancy=scheduler["occupancy"],
            preemptions=scheduler["preemptions"],
            slots={
                "pinned": slots["pinned"],
                "held": slots["held"],
                "idle": slots["idle"],
                "empty": scheduler["max_slots"] - slots.total(),
            },
            hits=dict(self._hits),
            loads={**tiers.loads, "host": runner.load_seconds.spread()},
            failed_loads=self._failed_loads + tiers.failed_loads,
            fetching=tiers.fetching,
            evictions={
                "device": scheduler["adapter_evictions"],
                "host": tiers.host_evictions,
                "disk": tiers.disk_evictions,
            },
            prefix_evictions=prefixes["evictions"],
            integrity={
                "slot": outcomes.get(SlotIntegrity.reason, 0) + self._lost,
                "non_finite": outcomes.get(NonFiniteLogits.reason, 0),
                "provenance": outcomes.get(ProvenanceMismatch.reason, 0),
                "cache_folder": tiers.damaged_folders,
            },
            ranks={"used": used, "padding": padding},
            bytes={
                **{f"device_{name}": memory[name] for name in _BYTES},
                "host_adapters": tiers.host_bytes,
                "disk_adapters": tiers.disk_bytes,
            },
        )


def _use_of(slot: Mapping[str, Any]) -> str:
    if slot["pins"]:
        return "pinned"
    return "held" if slot["holds"] else "idle"


__all__ = ["Loaded", "Meter"]
