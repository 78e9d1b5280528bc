"""The scheduler's own time a step, on one core: it must not grow with what waits.

    python benchmarks/bench_scheduler.py [--running 16 64 256] [--queues 0 1000 10000] [--json PATH]

CPU milliseconds of ``plan`` and ``complete`` together (they wait for nothing, so what else the machine does stays out);
results are made outside of what is timed, and nothing is checked inside of it. Cases: ``full``: every seat is taken, so
nothing is admitted. ``slots``: seats are free, but what waits needs a slot and every slot is pinned, so each plan looks
for somebody to admit and passes all over. ``extras``: the same, but slots are free and all bytes of extras are pinned,
and each of the 500 adapters that wait has a size of its own (rank 8 to 64, 1 kB to 64 MB). ``churn``: short outputs, so
that requests join and leave at every step.
Prompts differ in length, so that sequences need a new page at different steps. Rounds are interleaved over the queues'
lengths; ``of_shortest`` is the median over the rounds of the ratio to the same step with the shortest queue that is not
empty.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from reporting import keep, parser_of, quantile, show

from lorry.config import MemoryConfig, SchedulerConfig
from lorry.ids import AdapterDigest, AdapterKey, AdapterScope, RequestId, TenantId
from lorry.kvcache import BlockTables
from lorry.memory import MemoryLedger
from lorry.request import SamplingParams, StoppingParams
from lorry.residency import HostState, Ready, Residency
from lorry.scheduler import ScheduledRequest, Scheduler, SequenceResult, StepPlan, StepResult

CASES = ("full", "slots", "extras", "churn")
SLOTS, TENANTS = 32, 16
BUDGET, EXTRAS = 8 << 30, 0.25
SHORT, LONG = 32, 3000
"""Tokens out: of a request that leaves soon, and of one that outlasts the measurement."""


@dataclass(frozen=True, slots=True)
class Version:
    key: AdapterKey
    rank: int = 8
    extra_bytes: int = 0


class WarmHost:
    """Every version is on the host already."""

    def ensure(self, ref: Version) -> HostState:
        return Ready(ref.rank, ref.extra_bytes)

    def tier_of(self, adapter: AdapterKey) -> str:
        return "host"

    def retain(self, adapter: AdapterKey) -> None:
        """Nothing leaves this host tier."""

    def release(self, adapter: AdapterKey) -> None:
        """Nothing leaves this host tier."""


@dataclass
class Cell:
    """One scheduler under one case, with ``running`` seats and ``queue`` requests that wait."""

    case: str
    running: int
    queue: int
    rounds: list[list[float]] = field(default_factory=list)
    """Seconds of each step of each round."""

    def __post_init__(self) -> None:
        memory = MemoryConfig(
            BUDGET,
            adapter_fraction=0.1,
            extras_fraction=EXTRAS,
            page_tokens=64,
            chunk_rank=8,
            max_slots=self.slots + 8 * (self.case == "extras"),
            max_rank=64 if self.case == "extras" else 8,
        )
        limits = SchedulerConfig(
            max_sequences=self.running + 8 if self.blocked else self.running,
            token_budget=2048,
            prefill_chunk_tokens=512,
            max_queue=1 << 20,
            max_queue_per_tenant=1 << 20,
            context_tokens=4096,
        )
        ledger = MemoryLedger(memory, 1 << 16, 1 << 20, limits.context_tokens)
        host = WarmHost()
        self.scheduler: Scheduler[Version] = Scheduler(limits, ledger, BlockTables(ledger), Residency(ledger, host))
        self._numbers = 0
        for number in range(self.running):
            # In a churn the first ones end one after the other, as if they had come one after the other.
            self.add(number % self.slots, 1 + number % SHORT if self.case == "churn" else LONG)
        for _ in range(16):  # every running sequence is in and past its prompt
            self.step()
        for number in range(self.queue):
            self.add(self.slots + number % 500 if self.blocked else number % self.slots, self.out)

    @property
    def slots(self) -> int:
        """Each of them has a running sequence."""
        return min(SLOTS, self.running)

    @property
    def blocked(self) -> bool:
        """Seats are free, and what waits lacks room."""
        return self.case in ("slots", "extras")

    def version(self, adapter: int) -> Version:
        key = AdapterKey(AdapterDigest(f"a{adapter}"), AdapterScope("bench"))
        if self.case != "extras":
            return Version(key)
        if adapter < self.slots:  # all that run together leave not a byte
            return Version(key, 8, int(BUDGET * EXTRAS) // self.slots)
        return Version(key, 8 * (1 + adapter % 8), int(1000 * 1.0225 ** (adapter * 263 % 500)))

    @property
    def out(self) -> int:
        return SHORT if self.case == "churn" else LONG

    def add(self, adapter: int, out: int) -> None:
        number, self._numbers = self._numbers, self._numbers + 1
        self.scheduler.add(
            ScheduledRequest(
                request_id=RequestId(f"r{number}"),
                tenant=TenantId(f"t{number % TENANTS}"),
                prompt=(1,) * (8 + 7 * number % 64),
                ref=self.version(adapter),
                sampling=SamplingParams(),
                stopping=StoppingParams(max_tokens=out),
                deadline=time.monotonic() + 3600.0,
            )
        )

    def step(self) -> float:
        """Seconds of plan and complete."""
        if self.case == "churn":  # as many come as leave in the long run, so the queue keeps its length
            for _ in range(max(1, self.running // SHORT)):
                self.add(self._numbers % self.slots, SHORT)
        begin = time.thread_time()
        plan = self.scheduler.plan()
        middle = time.thread_time()
        if plan is None:
            raise RuntimeError("the scheduler had nothing to run")
        result = answer(plan)
        resumed = time.thread_time()
        self.scheduler.complete(plan, result)
        return time.thread_time() - resumed + middle - begin

    def round(self, steps: int) -> None:
        self.rounds.append([self.step() for _ in range(steps)])

    def row(self, shortest: Cell) -> dict[str, Any]:
        state = self.scheduler.state()
        times = [1e3 * seconds for found in self.rounds for seconds in found]
        pairs = zip(self.rounds, shortest.rounds, strict=True)
        return {
            "case": self.case,
            "running": state["running"],
            "waiting": state["waiting"],
            "ms_per_step_p50": round(quantile(times, 0.5), 3),
            "ms_per_step_p95": round(quantile(times, 0.95), 3),
            "of_shortest": round(statistics.median(statistics.median(a) / statistics.median(b) for a, b in pairs), 2),
        }


def answer(plan: StepPlan) -> StepResult:
    rows = tuple(SequenceResult(r.sequence, (5,) * r.logit_rows, r.adapter) for r in plan.sequences)
    return StepResult(plan.step, rows, 0.0)


def measure(running: Sequence[int], queues: Sequence[int], rounds: int, steps: int) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for case in CASES:
        for seats in running:
            cells = [Cell(case, seats, queue) for queue in sorted(queues)]
            for _ in range(rounds):
                for cell in cells:
                    cell.round(steps)
            shortest = next((cell for cell in cells if cell.queue), cells[0])
            rows.extend(cell.row(shortest) for cell in cells)
    return {"benchmark": "scheduler", "rounds": rounds, "steps_a_round": steps, "cells": rows}


def on_one_core() -> None:
    """Scheduler and bookkeeping have one core beside the model's; so here (where the system can say so)."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--running", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--queues", type=int, nargs="*", default=[0, 1000, 10_000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40, help="steps a round (default: %(default)s)")
    options = parser.parse_args()
    on_one_core()
    result = measure(options.running, options.queues, options.rounds, options.steps)
    columns = ("case", "running", "waiting", "ms_per_step_p50", "ms_per_step_p95", "of_shortest")
    show("plan + complete, milliseconds a step", columns, ([row[name] for name in columns] for row in result["cells"]))
    keep(result, options.json)


if __name__ == "__main__":
    main()
