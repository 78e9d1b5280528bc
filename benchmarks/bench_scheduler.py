"""Scheduler time per step: 256 sequences run, 0 to 10,000 requests wait. Prints JSON.

``full``: every seat is taken, so nothing is admitted. ``slots``: seats are free, but what waits needs a
slot and every slot is pinned, so each plan looks for somebody to admit and passes all over. ``churn``: short
outputs, so that requests join and leave at every step. Milliseconds of plan + complete, per step.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass

from lorry.config import MemoryConfig, SchedulerConfig
from lorry.ids import AdapterDigest, RequestId, TenantId
from lorry.kvcache import BlockTables
from lorry.memory import MemoryLedger
from lorry.request import SamplingParams, StoppingParams
from lorry.residency import HostState, Ready, Residency
from lorry.scheduler import ScheduledRequest, Scheduler, SequenceResult, StepPlan, StepResult

RUNNING = 256
SLOTS = 32
TENANTS = 16


@dataclass(frozen=True, slots=True)
class Version:
    digest: AdapterDigest


class WarmHost:
    """Every version is on the host already, at rank 8."""

    def ensure(self, ref: Version) -> HostState:
        return Ready(8)

    def tier_of(self, digest: AdapterDigest) -> str:
        return "host"

    def retain(self, digest: AdapterDigest) -> None:
        """Nothing leaves this host tier."""

    def release(self, digest: AdapterDigest) -> None:
        """Nothing leaves this host tier."""


def make(seats: int) -> Scheduler[Version]:
    memory = MemoryConfig(1 << 30, 0.1, page_tokens=16, chunk_rank=8, max_slots=SLOTS, max_rank=8)
    limits = SchedulerConfig(
        max_sequences=seats, token_budget=2048, prefill_chunk_tokens=512, max_queue=1 << 20, context_tokens=4096
    )
    ledger = MemoryLedger(memory, 1 << 14, 1 << 20, limits.context_tokens)
    return Scheduler(limits, ledger, BlockTables(ledger), Residency(ledger, WarmHost()))


def add(scheduler: Scheduler[Version], number: int, adapter: int | None, out: int) -> None:
    scheduler.add(
        ScheduledRequest(
            request_id=RequestId(f"r{number}"),
            tenant=TenantId(f"t{number % TENANTS}"),
            prompt=(1,) * 32,
            ref=None if adapter is None else Version(AdapterDigest(f"a{adapter}")),
            sampling=SamplingParams(),
            stopping=StoppingParams(max_tokens=out),
            deadline=time.monotonic() + 3600.0,
        )
    )


def answer(plan: StepPlan) -> StepResult:
    rows = tuple(SequenceResult(r.sequence, (5,) * r.logit_rows, r.digest) for r in plan.sequences)
    return StepResult(plan.step, rows, 0.0)


def step(scheduler: Scheduler[Version]) -> float:
    """Seconds of plan and complete."""
    begin = time.perf_counter()
    plan = scheduler.plan()
    middle = time.perf_counter()
    if plan is None:
        raise RuntimeError("the scheduler had nothing to run")
    result = answer(plan)
    resumed = time.perf_counter()
    scheduler.complete(plan, result)
    return time.perf_counter() - resumed + middle - begin


def measure(case: str, queue: int, steps: int) -> dict[str, float | int | str]:
    scheduler = make(RUNNING + 8 if case == "slots" else RUNNING)
    out = 32 if case == "churn" else 2000
    for number in range(RUNNING):
        add(scheduler, number, number % SLOTS, 1 + number % out if case == "churn" else out)
    for _ in range(16):  # every running sequence is in and past its prompt
        step(scheduler)
    for number in range(RUNNING, RUNNING + queue):
        distinct = SLOTS + number % 500 if case == "slots" else number % SLOTS
        add(scheduler, number, distinct, out)
    times = []
    fresh = RUNNING + queue
    for _ in range(steps):
        if case == "churn":  # as many come as leave in the long run, so the queue keeps its length
            for _ in range(RUNNING // out):
                add(scheduler, fresh, fresh % SLOTS, out)
                fresh += 1
        times.append(step(scheduler) * 1e3)
    state = scheduler.state()
    times.sort()
    return {
        "case": case,
        "running": state["running"],
        "waiting": state["waiting"],
        "ms_per_step_p50": round(times[len(times) // 2], 3),
        "ms_per_step_p95": round(times[int(len(times) * 0.95)], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--queues", type=int, nargs="*", default=[0, 1000, 10_000])
    options = parser.parse_args()
    rows = [measure(case, queue, options.steps) for case in ("full", "slots", "churn") for queue in options.queues]
    print(json.dumps({"benchmark": "scheduler", "steps": options.steps, "results": rows}, indent=2))


if __name__ == "__main__":
    main()
