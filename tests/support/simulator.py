"""A scheduler in virtual time: arrivals and a cost model in, what every request saw out. No torch, no sleeping.

A step's seconds are what the plan costs on a device that the model describes; the clock that the scheduler reads
moves by them and by nothing else, so a run of minutes takes milliseconds and gives the same figures every time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from lorry.config import MemoryConfig, SchedulerConfig
from lorry.errors import LorryError
from lorry.ids import AdapterDigest, AdapterKey, AdapterScope, RequestId, TenantId
from lorry.kvcache import BlockTables
from lorry.memory import MemoryLedger
from lorry.request import SamplingParams, StoppingParams
from lorry.residency import Fetching, HostState, Ready, Residency
from lorry.scheduler import ScheduledRequest, Scheduler, SequenceResult, StepPlan, StepResult

PAGE_BYTES, CHUNK_BYTES = 2_949_120, 9_830_400
"""Of SmolLM2-135M: 64 tokens, and 8 rank rows."""
TOKEN = 7


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds. The defaults are about those of SmolLM2-135M on two cores."""

    fixed_s: float = 0.022
    prefill_token_s: float = 0.0008
    decode_row_s: float = 0.0015
    load_s: float = 0.003
    fetch_s: float = 0.0

    def of(self, plan: StepPlan) -> float:
        decodes = sum(1 for row in plan.sequences if row.query_len == 1)
        prefill = plan.tokens - decodes
        return (
            self.fixed_s + prefill * self.prefill_token_s + decodes * self.decode_row_s + len(plan.loads) * self.load_s
        )


@dataclass(frozen=True, slots=True)
class Version:
    """A VersionRef."""

    key: AdapterKey
    rank: int = 8


def _key_of(adapter: str) -> AdapterKey:
    return AdapterKey(AdapterDigest(adapter), AdapterScope("simulated"))


@dataclass(frozen=True, slots=True)
class Arrival:
    """``prompt`` and ``out`` are tokens, ``adapter`` a name or None for the base."""

    at: float
    name: str
    prompt: int
    out: int
    adapter: str | None = None
    rank: int = 8
    tenant: str = "t"


@dataclass(slots=True)
class Life:
    """What became of a request, in seconds of the virtual clock; None where it did not come to that. It is ``added``
    at the end of the step during which it arrived."""

    arrived: float
    added: float
    started: float | None = None
    first_token: float | None = None
    ended: float | None = None
    tokens: int = 0
    error: LorryError | None = None

    @property
    def ttft(self) -> float:
        assert self.first_token is not None
        return self.first_token - self.arrived

    @property
    def latency(self) -> float:
        assert self.ended is not None
        return self.ended - self.arrived


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class FetchingHost:
    """A host tier that takes ``fetch_s`` of the virtual clock for a version that it has not seen."""

    def __init__(self, clock: Clock, fetch_s: float) -> None:
        self._clock = clock
        self._fetch_s = fetch_s
        self._there_at: dict[AdapterKey, float] = {}

    def ensure(self, ref: Version) -> HostState:
        there_at = self._there_at.setdefault(ref.key, self._clock.now + self._fetch_s)
        return Ready(ref.rank) if self._clock.now >= there_at else Fetching()

    def tier_of(self, adapter: AdapterKey) -> str:
        return "host" if self._there_at.get(adapter, math.inf) <= self._clock.now else "object_store"

    def retain(self, adapter: AdapterKey) -> None:
        """It never lets go of anything."""

    def release(self, adapter: AdapterKey) -> None:
        """It never lets go of anything."""


@dataclass
class Simulator:
    """Runs one workload. ``steps`` and ``clock`` may be read afterwards; ``plans`` too where ``keep_plans``."""

    scheduler_config: SchedulerConfig = field(default_factory=SchedulerConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    cost: StepCost = StepCost()
    keep_plans: bool = False
    clock: Clock = field(default_factory=Clock)
    steps: int = 0
    plans: list[StepPlan] = field(default_factory=list)
    lives: dict[str, Life] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ledger = MemoryLedger(self.memory, PAGE_BYTES, CHUNK_BYTES, self.scheduler_config.context_tokens)
        residency: Residency[Version] = Residency(ledger, FetchingHost(self.clock, self.cost.fetch_s))
        self.scheduler: Scheduler[Version] = Scheduler(
            self.scheduler_config, ledger, BlockTables(ledger), residency, self.clock
        )

    def run(self, arrivals: Iterable[Arrival], *, until: str | None = None, limit: int = 1_000_000) -> dict[str, Life]:
        """Every arrival to its end, or up to the end of ``until``: by name. Raises AssertionError where work is left
        that nothing moves."""
        coming = sorted(arrivals, key=lambda arrival: arrival.at, reverse=True)
        for _ in range(limit):
            while coming and coming[-1].at <= self.clock.now:
                self._add(coming.pop())
            wanted = None if until is None else self.lives.get(until)
            if (wanted is not None and wanted.ended is not None) or not (coming or self.scheduler.has_work()):
                return self.lives
            if not self.step():
                self._wait(coming)
        raise AssertionError(f"work is left after {limit} steps: {self.scheduler.state()}")

    def step(self) -> bool:
        """Plan, let the step's time pass, complete. False where nothing can run now."""
        plan = self.scheduler.plan()
        self._take_events()
        if plan is None:
            return False
        self.clock.now += self.cost.of(plan)
        self.steps += 1
        if self.keep_plans:
            self.plans.append(plan)
        rows = tuple(SequenceResult(r.sequence, (TOKEN,) * r.logit_rows, r.adapter) for r in plan.sequences)
        for update in self.scheduler.complete(plan, StepResult(plan.step, rows, 0.0)):
            life = self.lives[update.request_id]
            life.tokens += len(update.tokens)
            if update.first is not None:
                life.started = life.added + update.first.queue_s
                life.first_token = self.clock.now
            if update.finish is not None or update.error is not None:
                life.ended, life.error = self.clock.now, update.error
        self._take_events()
        return True

    def _add(self, arrival: Arrival) -> None:
        life = self.lives[arrival.name] = Life(arrival.at, self.clock.now)
        request = ScheduledRequest(
            request_id=RequestId(arrival.name),
            tenant=TenantId(arrival.tenant),
            prompt=(1,) * arrival.prompt,
            ref=None if arrival.adapter is None else Version(_key_of(arrival.adapter), arrival.rank),
            sampling=SamplingParams(temperature=0.0),
            stopping=StoppingParams(max_tokens=arrival.out, ignore_eos=True),
        )
        try:
            self.scheduler.add(request)
        except LorryError as error:
            life.ended, life.error = self.clock.now, error

    def _take_events(self) -> None:
        for request_id, error in self.scheduler.drain_events():
            self.lives[request_id].ended, self.lives[request_id].error = self.clock.now, error

    def _wait(self, coming: Sequence[Arrival]) -> None:
        """To whatever is next: an arrival, or the time at which the scheduler wants to be asked again."""
        wakeup = self.scheduler.next_wakeup()
        times = [at for at in (coming[-1].at if coming else None, wakeup) if at is not None]
        assert times, f"nothing will ever move what is left: {self.scheduler.state()}"
        self.clock.now = max(min(times), math.nextafter(self.clock.now, math.inf))


def quantile(values: Iterable[float], fraction: float) -> float:
    """The smallest value that at least ``fraction`` of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(fraction * len(ordered)) - 1)]


__all__ = ["Arrival", "Life", "Simulator", "StepCost", "Version", "quantile"]
