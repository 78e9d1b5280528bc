"""The step loop, on a thread of its own: schedule, run, post-process.

Readers are told through one sink call a step. Everything that scheduler, runner and output streams hold
belongs to this thread; the outside reaches it through an inbox.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from lorry.adapters.manifest import AdapterRef
from lorry.engine.contract import EngineEvent, EngineRequest, Finished, Started, Tokens
from lorry.engine.events import (
    AdapterLoaded,
    EngineCounters,
    EngineOccurrence,
    Listener,
    RequestAdmitted,
    RequestEnded,
    RequestRefused,
    RequestStarted,
    StepRan,
)
from lorry.engine.output import OutputStream, ProvenanceOf
from lorry.engine.runner import CpuRunner
from lorry.errors import (
    EngineUnavailable,
    InternalError,
    InvalidRequest,
    LorryError,
    NonFiniteLogits,
    SlotIntegrity,
)
from lorry.ids import AdapterDigest, BaseDigest, RequestId
from lorry.request import check_params
from lorry.scheduler import Ending, FirstStep, ScheduledRequest, Scheduler, SequenceUpdate
from lorry.scheduler.plan import StepPlan, StepResult
from lorry.text import Tokenizer

log = logging.getLogger(__name__)

Outcome = tuple[RequestId, EngineEvent | LorryError]
Sink = Callable[[Sequence[Outcome]], None]

_Message = tuple[EngineRequest, float] | RequestId | Future[dict[str, Any]]

_FAULTS = (SlotIntegrity.reason, NonFiniteLogits.reason)


class EngineCore:
    """``start`` once, ``submit`` and ``abort`` from any thread, ``stop`` once."""

    def __init__(
        self,
        scheduler: Scheduler[AdapterRef],
        runner: CpuRunner,
        tokenizer: Tokenizer,
        base: BaseDigest,
        vocabulary: int,
        provenance: ProvenanceOf,
        clock: Callable[[], float] = time.monotonic,
        listeners: Sequence[Listener] = (),
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._tokenizer = tokenizer
        self._base = base
        self._vocabulary = vocabulary
        self._provenance = provenance
        self._clock = clock
        self._streams: dict[RequestId, OutputStream] = {}
        self._inbox: deque[_Message] = deque()
        self._condition = threading.Condition()
        self._woken = False
        self._stopping = False
        self._ended = False
        self._alive = False
        self._sink: Sink = lambda outcomes: None
        self._on_end: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="lorry-engine", daemon=True)
        self._counters = EngineCounters()
        self._listeners: tuple[Listener, ...] = (self._counters, *listeners)

    @property
    def alive(self) -> bool:
        """False before ``start``, after ``stop``, and after a fault that ended the loop."""
        return self._alive

    def start(self, sink: Sink, on_end: Callable[[], None] = lambda: None) -> None:
        """``sink`` gets the outcomes of each step, ``on_end`` is called once, last; both on the loop's thread."""
        self._sink, self._on_end = sink, on_end
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
        answer: Future[dict[str, Any]] = Future()
        self._tell(answer)
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
        """One turn: take in, schedule, run, post-process. False if there was nothing to run."""
        outcomes = self._take_inbox()
        plan = self._scheduler.plan()
        if plan is not None:
            result = self._runner.collect(self._runner.submit(plan))
            updates = self._scheduler.complete(plan, result)
            self._note_step(plan, result)
            for update in updates:
                outcomes.extend(self._post_process(update, plan.step))
        for request_id, error in self._scheduler.drain_events():
            outcomes.extend(self._end(request_id, error))
        if outcomes:
            self._sink(outcomes)
        return plan is not None

    def _take_inbox(self) -> list[Outcome]:
        outcomes: list[Outcome] = []
        while self._inbox:
            item = self._inbox.popleft()
            if isinstance(item, Future):
                if item.set_running_or_notify_cancel():
                    item.set_result(self._state())
                continue
            if isinstance(item, str):
                self._streams.pop(item, None)
                self._scheduler.abort(item)
                continue
            request, arrived = item
            try:
                self._admit(request, arrived)
            except Exception as fault:
                # Nothing of the request is held yet (`add` comes last), so it alone ends, whatever it was.
                error = fault if isinstance(fault, LorryError) else _unforeseen(request, fault)
                self._emit(RequestRefused(request.request_id, request.tenant, error.reason, self._clock()))
                outcomes.append((request.request_id, error))
        return outcomes

    def _admit(self, request: EngineRequest, arrived: float) -> None:
        if request.base != self._base:
            raise InvalidRequest.field("base", f"{request.base} is not served here; this engine has {self._base}")
        wrong = next((t for t in request.prompt if not 0 <= t < self._vocabulary), None)
        if wrong is not None:
            raise InvalidRequest.field("token_ids", f"{wrong} is not a token id; ids are 0 to {self._vocabulary - 1}")
        check_params(request.sampling, request.stopping)
        stream = OutputStream(self._tokenizer, request.prompt, request.stopping)
        self._scheduler.add(
            ScheduledRequest(
                request_id=request.request_id,
                tenant=request.tenant,
                prompt=request.prompt,
                ref=request.adapter,
                sampling=request.sampling,
                stopping=request.stopping,
                deadline=None if request.deadline_s is None else arrived + request.deadline_s,
                queue_deadline=None if request.queue_timeout_s is None else arrived + request.queue_timeout_s,
                reject_cold=request.reject_cold,
            )
        )
        self._streams[request.request_id] = stream
        digest = request.adapter.digest if request.adapter else None
        self._emit(RequestAdmitted(request.request_id, request.tenant, digest, len(request.prompt), arrived))

    def _post_process(self, update: SequenceUpdate, step: int) -> list[Outcome]:
        request_id = update.request_id
        stream = self._streams.get(request_id)
        if stream is None:
            return []
        if update.error is not None:
            return self._end(request_id, update.error)
        outcomes: list[Outcome] = []
        if update.first is not None:
            outcomes.append((request_id, self._start_of(request_id, update.adapter, update.first)))
        piece = stream.push(update.tokens)
        text, matched, ending = piece.text, piece.matched_stop, update.finish
        if matched and ending is None:
            ending = self._scheduler.finish(request_id)
        elif ending is not None and not matched:
            rest = stream.flush()
            text, matched = text + rest.text, rest.matched_stop
        if update.tokens or text:
            outcomes.append((request_id, Tokens(update.tokens, text)))
        if ending is not None:
            outcomes.extend(self._finish(request_id, update.adapter, ending, matched, step))
        return outcomes

    def _start_of(self, request_id: RequestId, adapter: AdapterDigest | None, first: FirstStep) -> Started:
        self._emit(RequestStarted(request_id, adapter, first.tier, first.queue_s, first.adapter_load_s, self._clock()))
        return Started(self._provenance(adapter), first.tier, first.queue_s, first.adapter_load_s)

    def _finish(
        self, request_id: RequestId, adapter: AdapterDigest | None, ending: Ending, matched: str, step: int
    ) -> list[Outcome]:
        if adapter is not None:
            try:
                self._runner.verify(adapter, step)
            except SlotIntegrity as error:
                self._scheduler.slot_lost(adapter)
                return self._end(request_id, error)
        self._streams.pop(request_id, None)
        reason = "stop" if matched else ending.reason
        self._emit(RequestEnded(request_id, reason, ending.output_tokens, self._clock()))
        return [
            (
                request_id,
                Finished(
                    provenance=self._provenance(adapter),
                    reason=reason,
                    matched_stop=matched,
                    matched_stop_id=None if matched else ending.matched_stop_id,
                    prompt_tokens=ending.prompt_tokens,
                    output_tokens=ending.output_tokens,
                    cached_prompt_tokens=ending.cached_prompt_tokens,
                    prefill_s=ending.prefill_s,
                    ttft_s=ending.ttft_s,
                    decode_s=ending.decode_s,
                    max_distinct_adapters=ending.max_distinct_adapters,
                    min_distinct_adapters=ending.min_distinct_adapters,
                ),
            )
        ]

    def _end(self, request_id: RequestId, error: LorryError) -> list[Outcome]:
        self._emit(RequestEnded(request_id, error.reason, 0, self._clock()))
        if error.reason in _FAULTS:
            log.error("request %s ended: %s", request_id, error)
        return [(request_id, error)] if self._streams.pop(request_id, None) is not None else []

    def _state(self) -> dict[str, Any]:
        scheduler, counters = self._scheduler.state(), self._counters.state()
        return {
            "alive": self._alive,
            "live": scheduler["waiting"] + scheduler["running"],
            "faults": {reason: n for reason, n in counters["outcomes"].items() if reason in _FAULTS},
            **counters,
            "scheduler": scheduler,
        }

    def _note_step(self, plan: StepPlan, result: StepResult) -> None:
        now = self._clock()
        failed = {slot for slot, _ in result.failed_loads}
        for load in plan.loads:
            self._emit(AdapterLoaded(load.slot, load.digest, load.slot not in failed, now))
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
            while not self._stopping:
                if not self.step():
                    self._idle()
        except BaseException:
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
        """Every request that will get no further event. From here on none is taken."""
        with self._condition:
            self._ended = True
            left = list(self._streams)
            while self._inbox:
                item = self._inbox.popleft()
                if isinstance(item, Future):
                    item.cancel()
                elif not isinstance(item, str):
                    left.append(item[0].request_id)
            return left

    def _idle(self) -> None:
        with self._condition:
            if self._inbox or self._stopping or self._woken:
                self._woken = False
                return
            due = self._scheduler.next_wakeup()
            timeout = None if due is None else max(0.0, due - self._clock())
            self._condition.wait(timeout)
            self._woken = False


def _unforeseen(request: EngineRequest, fault: Exception) -> LorryError:
    log.error("request %s could not be admitted", request.request_id, exc_info=fault)
    return InternalError(f"request {request.request_id} could not be admitted; it is logged under this id")


__all__ = ["EngineCore", "Outcome", "Sink"]
