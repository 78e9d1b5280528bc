"""The sequences that run: who joins, grows, is preempted, leaves."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from typing import Generic

from lorry.errors import InternalError, SlotIntegrity
from lorry.ids import RequestId, SequenceId
from lorry.residency.host import R
from lorry.scheduler.admission import Admitted, Devices
from lorry.scheduler.entry import Entry, Place
from lorry.scheduler.plan import SequenceStep
from lorry.scheduler.prefixes import Prefixes
from lorry.scheduler.running import NEVER, Running

_row = tuple.__new__
"""Makes a named tuple without its Python constructor, which costs as much as the rest of a decode's planning."""


class Batch(Generic[R]):
    """Running sequences by rank, and those that were preempted while a step that they were in is under way (parked).

    ``on_preempted`` is told which request waits again.
    """

    def __init__(
        self,
        devices: Devices[R],
        prefixes: Prefixes[R],
        eos: frozenset[int],
        on_preempted: Callable[[Entry[R]], None],
    ) -> None:
        self._devices = devices
        self._prefixes = prefixes
        self._eos = eos
        self._on_preempted = on_preempted
        self._page_tokens = devices.tables.page_tokens
        self._running: dict[SequenceId, Running[R]] = {}
        self._order: list[Running[R]] = []
        self._parked: dict[SequenceId, Running[R]] = {}
        self._finished: list[SequenceId] = []
        self._sequences = 0
        self.preemptions = 0

    def __len__(self) -> int:
        """How many run; parked ones do not."""
        return len(self._running)

    def __iter__(self) -> Iterator[Running[R]]:
        """By rank."""
        return iter(self._order)

    @property
    def next_sequence(self) -> SequenceId:
        return SequenceId(self._sequences)

    def find(self, sequence: SequenceId) -> Running[R] | None:
        """Running or parked."""
        return self._running.get(sequence) or self._parked.get(sequence)

    @property
    def finder(self) -> Callable[[SequenceId], Running[R] | None]:
        """``find``, for a loop in which nobody is parked or joins."""
        return self.find if self._parked else self._running.get

    def parked(self) -> list[Running[R]]:
        return list(self._parked.values())

    def join(self, admitted: Admitted[R], now: float) -> Running[R]:
        self._sequences += 1
        entry = admitted.entry
        running = entry.run if entry.run is not None else Running(entry, now, self._eos)
        running.join(admitted.sequence, admitted.blocks, self._page_tokens)
        if admitted.placement is not None:
            running.slot, running.generation = admitted.placement.slot, admitted.placement.generation
        entry.run, entry.place = running, Place.RUNNING
        self._running[running.sequence] = running
        insort(self._order, running, key=lambda r: r.entry.rank)
        return running

    def decodes(self, step: int) -> tuple[list[SequenceStep], list[Running[R]]]:
        """A row for each sequence that decodes, and those in prefill, by rank. Sequences that find no page for their
        next position have others preempted."""
        rows: list[SequenceStep] = []
        prefills: list[Running[R]] = []
        for running in self._order:  # a preemption takes from its end: one behind this one, or this one itself
            planned = running.planned
            if planned < running.known:
                prefills.append(running)
                continue
            if planned >= running.last_position or (planned >= running.room and not self._grow(running)):
                continue
            running.planned = planned + 1
            running.last_step = step
            rows.append(
                _row(
                    SequenceStep,
                    (
                        running.sequence,
                        planned,
                        1,
                        1,
                        running.slot,
                        running.generation,
                        running.adapter,
                        running.table,
                        running.cached,
                        0,
                    ),
                )
            )
        return rows, [r for r in prefills if r.entry.place is Place.RUNNING]

    def prefill(self, running: Running[R], step: int, tokens: int) -> SequenceStep:
        """A row of the next ``tokens`` known ids."""
        table = self._devices.tables.extend(running.sequence, running.planned + tokens)
        return running.advance(step, tokens, table, self._page_tokens)

    def preempt(self, running: Running[R]) -> None:
        self.leave(running, ended=False)
        running.preemptions += 1
        self.preemptions += 1
        if running.last_step <= self._devices.ledger.done_step:
            self._on_preempted(running.entry)
        else:
            running.entry.place = Place.PARKED
            self._parked[running.sequence] = running

    def step_done(self, step: int) -> None:
        """Parked sequences whose last step is done wait again."""
        for running in [r for r in self._parked.values() if r.last_step <= step]:
            del self._parked[running.sequence]
            self._on_preempted(running.entry)

    def leave(self, running: Running[R], *, ended: bool) -> None:
        """Its pages are usable, and its slot can be emptied, once its last step is done."""
        if self._parked.pop(running.sequence, None) is not None:
            return
        self._prefixes.leave(running, ended=ended)
        self._devices.tables.close(running.sequence, running.last_step)
        self._devices.residency.unpin(running.request_id, running.last_step)
        del self._running[running.sequence]
        del self._order[bisect_left(self._order, running.entry.rank, key=lambda r: r.entry.rank)]
        self._finished.append(running.sequence)
        running.publish_at = NEVER

    def drain_finished(self) -> tuple[SequenceId, ...]:
        """Sequences that the runner may forget; told once."""
        finished, self._finished = tuple(self._finished), []
        return finished

    def requests(self) -> dict[Place, set[RequestId]]:
        return {
            Place.RUNNING: {running.request_id for running in self._running.values()},
            Place.PARKED: {running.request_id for running in self._parked.values()},
        }

    def check_integrity(self) -> None:
        """Raises InternalError where running sequences, tables, pins and shared pages contradict each other."""
        tables, residency = self._devices.tables, self._devices.residency
        if self._order != sorted(self._running.values(), key=lambda r: r.entry.rank):
            raise InternalError("the running sequences are not in the order of their ranks")
        if len(tables) != len(self._running):
            raise InternalError("running sequences and their block tables differ")
        for r in self._order:
            if r.adapter is not None and r.request_id not in residency.pinned(r.slot, r.generation):
                raise SlotIntegrity(f"sequence {r.sequence} runs on slot {r.slot} without a pin on that fill")
            if [block.page for block in r.blocks] != list(tables.pages(r.sequence)[: len(r.blocks)]):
                raise InternalError(f"sequence {r.sequence}: its table does not begin with the pages it shares")

    def _grow(self, running: Running[R]) -> bool:
        """Give it the page of its next position. False: not in this step, or it was preempted itself."""
        tables, ledger = self._devices.tables, self._devices.ledger
        sequence, tokens = running.sequence, running.planned + 1
        while not tables.covers(sequence, tokens) and not tables.widen(sequence):
            if self._devices.reclaimer.secure(1, force=True):
                continue
            if ledger.awaits_step or self._devices.index.awaits_step:
                return False
            victim = self._order[-1]
            self.preempt(victim)
            if victim is running:
                return False
        running.table = tables.extend(sequence, tokens)
        running.room = len(running.table) * self._page_tokens
        return True


__all__ = ["Batch"]
