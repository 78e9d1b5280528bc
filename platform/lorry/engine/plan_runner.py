"""What every device's runner does with a StepPlan around its forward pass: loads, proofs, who runs and who does not."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from lorry.engine.sampler import SequenceState
from lorry.errors import AdapterLoadFailed, LorryError, SlotIntegrity
from lorry.histogram import LOAD_S, Histogram
from lorry.ids import BASE_SLOT, AdapterKey, ChunkId, Generation, PageId, SequenceId, SlotId
from lorry.layers.extras import AdapterExtras
from lorry.logs import fields
from lorry.scheduler.plan import SequenceResult, SequenceStep, SlotLoad, StepPlan, StepResult

log = logging.getLogger(__name__)


class Entry(Protocol):
    """What the slot table says of a slot."""

    @property
    def generation(self) -> Generation: ...

    @property
    def adapter(self) -> AdapterKey: ...

    @property
    def extras(self) -> AdapterExtras | None: ...


E = TypeVar("E", bound=Entry)
E_co = TypeVar("E_co", bound=Entry, covariant=True)
Results = Callable[[], Sequence[SequenceResult]]
"""Waits for the device, once."""


class AdapterStorage(Protocol[E_co]):
    """Adapters on a device, and its slot table."""

    def entry(self, slot: SlotId) -> E_co | None: ...

    def slot_of(self, adapter: AdapterKey) -> SlotId: ...

    def load(self, load: SlotLoad, image: Any, step: int) -> None: ...

    def unload(self, slot: SlotId) -> None: ...

    def verify(self, slot: SlotId, step: int) -> None: ...

    def release(self, chunks: Iterable[ChunkId]) -> None: ...


@dataclass(frozen=True, slots=True)
class StepHandle:
    """An accepted step. ``result`` waits until the device has done it."""

    result: Callable[[], StepResult]


class PlanRunner(ABC, Generic[E]):
    """``submit`` then ``collect``, one step at a time, on one thread. Knows sequences only by their plan.

    ``image`` hands out host images, ``discard`` makes the host tier fetch one anew that could not be loaded.
    """

    def __init__(
        self,
        adapters: AdapterStorage[E],
        vocabulary: int,
        image: Callable[[AdapterKey], Any],
        discard: Callable[[AdapterKey], None] = lambda adapter: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._adapters = adapters
        self._vocabulary = vocabulary
        self._image = image
        self._discard = discard
        self._clock = clock
        self._sequences: dict[SequenceId, SequenceState] = {}
        self._ranks: dict[SlotId, int] = {}
        self.load_seconds = Histogram(LOAD_S)
        """Of loads from host memory into a slot that went well."""

    overlaps = False
    """Whether the device works on after ``submit``, so that the host has time until ``collect``."""
    rank_granule = 1
    """Rank rows on the device come in so many."""

    def rank_rows(self) -> tuple[int, int]:
        """Of the adapters in slots: their largest ranks added up, and what rounding up to whole granules adds."""
        granule, ranks = self.rank_granule, self._ranks.values()
        return sum(ranks), sum(-rank % granule for rank in ranks)

    @abstractmethod
    def _forget(self, sequences: Sequence[SequenceId]) -> None:
        """They have ended."""

    @abstractmethod
    def _release_pages(self, pages: Sequence[PageId]) -> None:
        """The memory behind KV pages that nobody uses goes back."""

    @abstractmethod
    def _run(self, steps: list[SequenceStep]) -> Results:
        """The forward pass and the draws, at least one step, each of a slot that is what its plan means."""

    def submit(self, plan: StepPlan) -> StepHandle:
        began = self._clock()
        for sequence in plan.finished:
            self._sequences.pop(sequence, None)
        self._forget(plan.finished)
        for new in plan.new:
            self._sequences[new.sequence] = SequenceState.of(new)
        lost = self._unload_adapters(plan)
        self._release_pages(plan.idle_pages)
        self._adapters.release(plan.idle_chunks)
        failed = self._load_adapters(plan)
        self._verify_starting(plan)
        results: list[SequenceResult] = []
        runnable: list[SequenceStep] = []
        for step in plan.sequences:
            if self._slot_matches(step):
                runnable.append(step)
            else:
                results.append(SequenceResult(step.sequence, (), None, SlotIntegrity.reason))
        ran: Results = self._run(runnable) if runnable else tuple

        def result() -> StepResult:
            found = (*results, *ran())
            return StepResult(plan.step, found, self._clock() - began, tuple(failed), tuple(lost))

        return StepHandle(result)

    def collect(self, handle: StepHandle) -> StepResult:
        return handle.result()

    def verify(self, adapter: AdapterKey, step: int) -> None:
        """Before an answer is stated to be complete: the device still holds the bytes that were loaded as
        ``adapter``. Raises SlotIntegrity."""
        self._adapters.verify(self._adapters.slot_of(adapter), step)

    def _unload_adapters(self, plan: StepPlan) -> list[AdapterKey]:
        """Reads the bytes once more before they go: who was preempted from this fill, or uses pages that it computed,
        has nobody else to ask. Answers the versions whose bytes had changed."""
        lost: list[AdapterKey] = []
        for slot in plan.unloads:
            entry = self._adapters.entry(slot)
            try:
                if entry is not None:
                    self._adapters.verify(slot, plan.step)
            except SlotIntegrity as error:
                log.error("step %d: %s", plan.step, error)
                if entry is not None:
                    lost.append(entry.adapter)
            self._adapters.unload(slot)
            self._ranks.pop(slot, None)
            if entry is not None:
                log.info("adapter unloaded from the device", extra=_of(entry.adapter, slot))
        return lost

    def _load_adapters(self, plan: StepPlan) -> list[tuple[SlotId, str]]:
        failed: list[tuple[SlotId, str]] = []
        for load in plan.loads:
            began = self._clock()
            try:
                image = self._image(load.adapter)
                if image is None:
                    raise AdapterLoadFailed(f"adapter {load.adapter}: its host copy is gone; try again")
                self._adapters.load(load, image, plan.step)
                self._ranks[load.slot] = image.rank
                seconds = self._clock() - began
                self.load_seconds.observe(seconds)
                log.info("adapter loaded onto the device", extra=_of(load.adapter, load.slot, round(seconds, 6)))
            except LorryError as error:
                log.warning("adapter not loaded: %s", error, extra=_of(load.adapter, load.slot))
                self._adapters.unload(load.slot)
                self._ranks.pop(load.slot, None)
                self._discard(load.adapter)
                failed.append((load.slot, error.message))
        return failed

    def _verify_starting(self, plan: StepPlan) -> None:
        """Reads again the slots that sequences start on. A slot whose bytes changed is unpublished here, before
        any sequence of this step is matched against the table, so none of its sequences runs."""
        for step in plan.sequences:
            state = self._sequences[step.sequence]
            if step.slot == BASE_SLOT or state.started:
                continue
            state.started = True
            try:
                self._adapters.verify(step.slot, plan.step)
            except SlotIntegrity as error:
                log.error("step %d: %s", plan.step, error)

    def _slot_matches(self, step: SequenceStep) -> bool:
        """Whether the device's slot is the fill that the plan means, and has a row for each of the sequence's ids."""
        vocabulary = self._vocabulary
        if step.slot != BASE_SLOT:
            entry = self._adapters.entry(step.slot)
            if entry is None or entry.generation != step.generation or entry.adapter != step.adapter:
                return False
            if entry.extras is not None and entry.extras.vocabulary is not None:
                vocabulary = entry.extras.vocabulary
        return self._sequences[step.sequence].largest_id < vocabulary

    def _entry(self, step: SequenceStep) -> E | None:
        return self._adapters.entry(step.slot) if step.slot != BASE_SLOT else None


def _of(adapter: AdapterKey, slot: SlotId, seconds: float | None = None) -> dict[str, dict[str, Any]]:
    return fields(digest=adapter.digest, slot=slot, tier="host", seconds=seconds)


__all__ = ["AdapterStorage", "Entry", "PlanRunner", "Results", "StepHandle"]
