"""The step loop, on a thread of its own: schedule, run, post-process.

Readers are told through one sink call a step, or two. Everything that scheduler, runner and output streams hold
belongs to this thread; the outside reaches it through an inbox.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from lorry.adapters.manifest import AdapterRef
from lorry.engine.choices import FAULTS, Calls, Outcome, TextOf
from lorry.engine.contract import EngineRequest
from lorry.engine.events import (
    AdapterLoaded,
    EngineCounters,
    EngineOccurrence,
    Listener,
    RequestRefused,
    StepRan,
)
from lorry.engine.heartbeat import Audit, Heartbeat
from lorry.engine.meter import Meter
from lorry.engine.metrics import EngineMetrics
from lorry.engine.output import ProvenanceOf
from lorry.engine.plan_runner import PlanRunner
from lorry.engine.texts import LoadedTexts
from lorry.errors import EngineUnavailable, InternalError, InvalidRequest, LorryError
from lorry.ids import BaseDigest, RequestId
from lorry.request import check_params
from lorry.scheduler import Scheduler, SequenceUpdate
from lorry.scheduler.census import Standing
from lorry.scheduler.plan import StepPlan, StepResult
from lorry.text import Tokenizer

log = logging.getLogger(__name__)

Sink = Callable[[Sequence[Outcome]], None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Question:
    """Answered on the loop's thread, between two steps."""

    answer: Future[Any]
    ask: Callable[[], Any]

    def reply(self) -> None:
        """What goes wrong is the asker's to hear: the loop goes on."""
        if not self.answer.set_running_or_notify_cancel():
            return
        try:
            found = self.ask()
        except Exception as error:  # it is the asker's to hear
            self.answer.set_exception(error)
        else:
            self.answer.set_result(found)


_Message = tuple[EngineRequest, float] | RequestId | _Question


class EngineCore:
    """``start`` once, ``submit`` and ``abort`` from any thread, ``stop`` once."""

    def __init__(
        self,
        scheduler: Scheduler[AdapterRef],
        runner: PlanRunner[Any],
        tokenizer: Tokenizer,
        base: BaseDigest,
        vocabulary: int,
        provenance: ProvenanceOf,
        clock: Callable[[], float] = time.monotonic,
        listeners: Sequence[Listener] = (),
        warm_up: Callable[[], None] = lambda: None,
        when_idle: Sequence[Callable[[], None]] = (),
        text: TextOf = lambda adapter: None,
    ) -> None:
        """``warm_up`` runs first, on the loop's thread. ``when_idle``: every owner's ``check_integrity``, and what else
        is best done when nothing runs. ``text``: of adapters in host memory (``TextOf``)."""
        self._scheduler = scheduler
        self._runner = runner
        self._base = base
        self._vocabulary = vocabulary
        self._clock = clock
        self._texts = LoadedTexts(text)
        self._calls = Calls(scheduler, tokenizer, runner.verify, provenance, self._emit, clock, self._texts)
        self._inbox: deque[_Message] = deque()
        self._untold: list[Outcome] = []
        self._later: list[tuple[SequenceUpdate, int]] = []
        self._condition = threading.Condition()
        self._woken = False
        self._stopping = False
        self._ended = False
        self._alive = False
        self._sink: Sink = lambda outcomes: None
        self._on_end: Callable[[], None] = lambda: None
        self._on_warm: Callable[[], None] = lambda: None
        self._warm_up = warm_up
        self._audit = Audit(when_idle)
        self.heartbeat = Heartbeat()
        self.sections: dict[str, Callable[[], Any]] = {"integrity": self._audit.state}
        """Further parts of ``state``, each bounded."""
        self._thread = threading.Thread(target=self._run, name="lorry-engine", daemon=True)
        self._counters = EngineCounters()
        self.meter = Meter()
        self._listeners: tuple[Listener, ...] = (self._counters, self.meter, *listeners)

    @property
    def alive(self) -> bool:
        """False before ``start``, after ``stop``, and after a fault that ended the loop."""
        return self._alive

    def listen(self, listener: Listener) -> None:
        """One more listener; before ``start``."""
        self._listeners = (*self._listeners, listener)

    def start(
        self, sink: Sink, on_end: Callable[[], None] = lambda: None, on_warm: Callable[[], None] = lambda: None
    ) -> None:
        """``sink`` gets the outcomes of each step, ``on_warm`` is called once, before the first, and ``on_end`` once,
        last; all on the loop's thread. Requests that come before it is warm wait."""
        self._sink, self._on_end, self._on_warm = sink, on_end, on_warm
        self._alive = True
        self._thread.start()

    def stop(self) -> None:
        """Ends the loop after the current step. Idempotent."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        if self._thread.is_alive():
            self._thread.join()

    def submit(self, request: EngineRequest) -> None:
        self._tell((request, self._clock()))

    def abort(self, request_id: RequestId) -> None:
        self._tell(request_id)

    def wake(self) -> None:
        """Something that the scheduler waits for has changed (an adapter came in)."""
        with self._condition:
            self._woken = True
            self._condition.notify()

    def state(self) -> Future[dict[str, Any]]:
        """Bounded JSON, made between two steps. Counters since start; ``distinct_adapters`` of the last steps.
        Cancelled where the loop has ended."""
        return self.ask(self._state)

    def metrics(self) -> Future[EngineMetrics]:
        """Made between two steps. Cancelled where the loop has ended."""
        return self.ask(lambda: self.meter.read(self._scheduler.state(), self._runner, self._counters))

    def census(self) -> Future[list[Standing]]:
        """Every live request, between two steps. Cancelled where the loop has ended."""
        return self.ask(self._scheduler.census)

    def requests_in(self, plan: StepPlan) -> tuple[RequestId, ...]:
        """Whose rows a step has. For another thread, while the loop stands in that step."""
        return self._scheduler.requests_in(plan)

    def ask(self, question: Callable[[], T]) -> Future[T]:
        """Answered on the loop's thread, between two steps. Cancelled where the loop has ended."""
        answer: Future[T] = Future()
        self._tell(_Question(answer, question))
        if not self._alive:
            answer.cancel()
        return answer

    def _tell(self, message: _Message) -> None:
        """Raises EngineUnavailable for a request that nobody would answer any more."""
        with self._condition:
            if self._ended and isinstance(message, tuple):
                raise EngineUnavailable("the engine has stopped; try again", retry_after_s=1.0)
            self._inbox.append(message)
            self._condition.notify()

    def step(self) -> bool:
        """One turn: take in, schedule, run, post-process. False if there was nothing to do.

        Where the device works on after ``submit``, news that can neither begin nor end an answer are post-processed
        while the next step runs. All others are at once: what ends an answer is proven while its slot cannot have gone.
        """
        self._take_inbox(self._untold)
        plan = self._scheduler.plan()
        later, self._later = self._later, []
        if plan is None:
            self._post_process(later)
        else:
            self.heartbeat.plan = plan
            handle = self._runner.submit(plan)
            if later:
                self._post_process(later)
                self._tell_readers()
            result = self._runner.collect(handle)
            self.heartbeat.plan = None
            self._audit.note_step(self._clock())
            self._texts.note(plan, result)
            self.meter.note(plan, result)
            updates = self._scheduler.complete(plan, result)
            self._note_step(plan, result)
            at_once: list[tuple[SequenceUpdate, int]] = []
            for update in updates:
                waits = self._runner.overlaps and self._calls.can_wait(update)
                (self._later if waits else at_once).append((update, plan.step))
            self._post_process(at_once)
        for request_id, error in self._scheduler.drain_events():
            self._untold.extend(self._calls.fail(request_id, error))
        self._tell_readers()
        return plan is not None or bool(later)

    def _post_process(self, updates: Sequence[tuple[SequenceUpdate, int]]) -> None:
        """Each with the step that it is of."""
        for update, step in updates:
            self._untold.extend(self._calls.update(update, step))

    def _tell_readers(self) -> None:
        if self._untold:
            outcomes, self._untold = self._untold, []
            self._sink(outcomes)

    def _take_inbox(self, outcomes: list[Outcome]) -> None:
        while self._inbox:
            item = self._inbox.popleft()
            if isinstance(item, _Question):
                item.reply()
                continue
            if isinstance(item, str):
                self._calls.abort(item)
                continue
            request, arrived = item
            try:
                self._admit(request, arrived)
            except Exception as fault:  # told to the one request that met it
                # Nothing of the request is held yet (`add` comes last), so it alone ends, whatever it was.
                error = fault if isinstance(fault, LorryError) else _unforeseen(request, fault)
                self._emit(RequestRefused(request.request_id, request.tenant, error.reason, self._clock()))
                outcomes.append((request.request_id, error))

    def _admit(self, request: EngineRequest, arrived: float) -> None:
        if request.base != self._base:
            raise InvalidRequest.field("base", f"{request.base} is not served here; this engine has {self._base}")
        vocabulary = self._vocabulary if request.vocabulary is None else request.vocabulary
        if request.adapter is None and (request.text is not None or vocabulary != self._vocabulary):
            raise InvalidRequest.field("text", "is a version's own, and the request names the base; leave it out")
        wrong = next((t for t in request.prompt if not 0 <= t < vocabulary), None)
        if wrong is not None:
            raise InvalidRequest.field("token_ids", f"{wrong} is not a token id; ids are 0 to {vocabulary - 1}")
        check_params(request.sampling, request.stopping, request.output, request.n)
        biased = next((t for t, _ in request.sampling.logit_bias if not 0 <= t < vocabulary), None)
        if biased is not None:
            text = f"{biased} is not a token id; ids are 0 to {vocabulary - 1}"
            raise InvalidRequest.field("sampling.logit_bias", text)
        self._calls.open(request, arrived)

    def _state(self) -> dict[str, Any]:
        scheduler, counters = self._scheduler.state(), self._counters.state()
        return {
            "alive": self._alive,
            "live": scheduler["live"],
            "faults": {reason: n for reason, n in counters["outcomes"].items() if reason in FAULTS},
            **counters,
            **{name: made() for name, made in self.sections.items()},
            "scheduler": scheduler,
        }

    def _note_step(self, plan: StepPlan, result: StepResult) -> None:
        now = self._clock()
        failed = {slot for slot, _ in result.failed_loads}
        for load in plan.loads:
            self._emit(AdapterLoaded(load.slot, load.adapter, load.slot not in failed, now))
        decode = sum(1 for row in plan.sequences if row.query_len == 1)
        mix = plan.distinct_adapters
        prefill = plan.tokens - decode
        self._emit(StepRan(plan.step, result.seconds, prefill, decode, len(plan.sequences), mix, now))

    def _emit(self, event: EngineOccurrence) -> None:
        for listener in self._listeners:
            listener(event)

    def _run(self) -> None:
        error: LorryError = EngineUnavailable("the engine was stopped", retry_after_s=1.0)
        try:
            self._warm_up()
            self._on_warm()
            while not self._stopping:
                self.heartbeat.turn(self._clock())
                if not self.step():
                    self._idle()
        except BaseException:  # interrupts too: whoever waits must be told
            # State may be half changed: nothing after this may be answered. The process is restarted.
            log.exception("the engine's step loop ended")
            error = EngineUnavailable("the engine failed; try again", retry_after_s=1.0)
        self._alive = False
        left = self._leave()
        try:
            self._sink([(request_id, error) for request_id in left])
        finally:
            self._on_end()

    def _leave(self) -> list[RequestId]:
        """Every request that will get no further event, with those whose last one was made in the turn that failed and
        is not told. From here on none is taken."""
        with self._condition:
            self._ended = True
            left = list(dict.fromkeys([*self._calls.live(), *(request_id for request_id, _ in self._untold)]))
            while self._inbox:
                item = self._inbox.popleft()
                if isinstance(item, _Question):
                    item.answer.cancel()
                elif not isinstance(item, str):
                    left.append(item[0].request_id)
            return left

    def _idle(self) -> None:
        self.heartbeat.rest()
        audit_at = None if self._scheduler.has_work() else self._audit.due_at
        if audit_at is not None and self._clock() >= audit_at:
            self._audit.run()
            audit_at = None
        with self._condition:
            if self._inbox or self._stopping or self._woken:
                self._woken = False
                return
            due = [at for at in (self._scheduler.next_wakeup(), audit_at) if at is not None]
            timeout = max(0.0, min(due) - self._clock()) if due else None
            self._condition.wait(timeout)
            self._woken = False


def _unforeseen(request: EngineRequest, fault: Exception) -> LorryError:
    log.error("request %s could not be admitted", request.request_id, exc_info=fault)
    return InternalError(f"request {request.request_id} could not be admitted; it is logged under this id")


__all__ = ["EngineCore", "Outcome", "Sink"]
