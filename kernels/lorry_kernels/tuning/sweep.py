"""The search for a better configuration: what is tried, checked before it is timed, and when it is better. No torch."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from lorry_kernels.ops.launch import Launch
from lorry_kernels.tuning.configs import AttentionConfig, Config, ExpandConfig, ShrinkConfig
from lorry_kernels.tuning.rows import Phase, Row
from lorry_kernels.tuning.table import trial

Clock = Callable[[Callable[[], None]], float]
"""Microseconds that one call takes on the device, caches cold."""

MARGIN = 0.03
"""By how much a candidate must be faster than what stands: below it a table would change with the weather."""


class Trial(Protocol):
    """One configuration on one workload, data and plans in place."""

    def run(self) -> None:
        """Launches what is timed. May be called any number of times."""

    def error(self) -> float:
        """Of a fresh result, over its tolerance: above 1 is wrong."""


@dataclass(frozen=True, slots=True)
class Task:
    """A row of the table to find. ``standing``: what ``lookup`` gives now; ``prepare`` makes a trial and is called
    within ``table.trial``, so that wrappers take the candidate from ``lookup``."""

    op: str
    phase: Phase
    rank: int
    k: int | None
    n: int | None
    standing: Config
    prepare: Callable[[], Trial]

    @property
    def name(self) -> str:
        sizes = " ".join(f"{name}={value}" for name, value in (("K", self.k), ("N", self.n)) if value)
        return f"{self.op} {self.phase} {sizes}" + (f" rank<={self.rank}" if self.rank else "")


@dataclass(frozen=True, slots=True)
class Outcome:
    """``times``: median microseconds of every configuration that was right; ``rejected``: the others and why."""

    best: Config
    times: dict[Config, float]
    rejected: dict[Config, str]

    def row(self, task: Task, arch: str, card: str) -> Row:
        note = f"{card}: {self.times[self.best]:.1f} us, {self.times[task.standing]:.1f} us before"
        return Row(arch, task.op, task.phase, task.rank, task.k, task.n, self.best, note)


def sweep(task: Task, clock: Clock, *, rounds: int = 7, passes: int = 2) -> Outcome:
    """Neighbours of what stands, then neighbours of the best of those, ``passes`` times at most.

    Each is checked against the reference before it is timed; timings go around all of them ``rounds`` times, so that a
    card that warms up slows none alone, and medians are compared. Raises RuntimeError where what stands is wrong.
    """
    times: dict[Config, float] = {}
    rejected: dict[Config, str] = {}
    best = task.standing
    for _ in range(passes):
        before = best
        tried = (before, *(found for found in neighbours(before) if found not in times and found not in rejected))
        right: dict[Config, Trial] = {}
        for config in tried:
            reason = _prepare(task, config, right)
            if reason:
                rejected[config] = reason
        if before not in right:
            raise RuntimeError(f"{task.name}: {before} stands and is wrong: {rejected[before]}; mend the kernel first")
        times.update(_time(right, clock, rounds, task.op))
        fastest = min(right, key=lambda config: times[config])
        if times[fastest] < (1 - MARGIN) * times[before]:
            best = fastest
        if best == before:
            break
    return Outcome(best, times, rejected)


def _prepare(task: Task, config: Config, right: dict[Config, Trial]) -> str:
    """Puts a right one into ``right``; why not, otherwise."""
    with trial(task.op, config):
        try:
            made = task.prepare()
            error = made.error()
        except Exception as problem:  # Too much shared memory, a tile that does not compile: not a candidate.
            return f"{type(problem).__name__}: {problem}"
    if not error <= 1:  # NaN is wrong too.
        return f"differs from the reference by {error:.2g} times the tolerance"
    right[config] = made
    return ""


def _time(right: dict[Config, Trial], clock: Clock, rounds: int, op: str) -> dict[Config, float]:
    taken: dict[Config, list[float]] = {config: [] for config in right}
    for _ in range(rounds):
        for config, made in right.items():
            with trial(op, config):
                taken[config].append(clock(made.run))
    return {config: statistics.median(values) for config, values in taken.items()}


def neighbours(config: Config) -> Iterator[Config]:
    """Configurations that differ in one number, by a factor of two or a step."""
    if isinstance(config, ShrinkConfig):
        yield from _doubled(config, "block_k", 32, 512)
        yield from _doubled(config, "chunks", 1, 8)
        yield from _doubled(config, "split", 1, 16)
    elif isinstance(config, ExpandConfig):
        yield from _doubled(config, "block_n", 32, 256)
        yield from _doubled(config, "chunks", 1, 8)
    else:
        if config.rows > 16:  # A decode block's rows are not free.
            yield from _doubled(config, "rows", 32, 128)
        yield from _doubled(config, "keys", 16, 128)
    for launch in _launches(config.launch):
        yield replace(config, launch=launch)
    for occupancy in (config.occupancy - 1, config.occupancy + 1):
        if 1 <= occupancy <= 8:
            yield replace(config, occupancy=occupancy)


def _launches(launch: Launch) -> Iterator[Launch]:
    for warps in (launch.num_warps // 2, launch.num_warps * 2):
        if 2 <= warps <= 8:
            yield replace(launch, num_warps=warps)
    for stages in (launch.num_stages - 1, launch.num_stages + 1):
        if 1 <= stages <= 5:
            yield replace(launch, num_stages=stages)
    if launch.max_registers is not None:
        yield replace(launch, max_registers=None)


_C = TypeVar("_C", ShrinkConfig, ExpandConfig, AttentionConfig)


def _doubled(config: _C, name: str, least: int, most: int) -> Iterator[_C]:
    value = getattr(config, name)
    for other in (value // 2, value * 2):
        if least <= other <= most:
            yield replace(config, **{name: other})


__all__ = ["MARGIN", "Clock", "Outcome", "Task", "Trial", "neighbours", "sweep"]
