"""Calls and their choices: a sequence of the scheduler for each choice, one stream of events for each call."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from lorry.adapters.manifest import AdapterRef
from lorry.engine.contract import ChoiceEnd, EngineEvent, EngineRequest, Finished, Provenance, Started, Tokens
from lorry.engine.events import EngineOccurrence, RequestAdmitted, RequestEnded, RequestStarted
from lorry.engine.output import OutputStream, ProvenanceOf
from lorry.errors import (
    AlreadyExists,
    InternalError,
    LorryError,
    NonFiniteLogits,
    ProvenanceMismatch,
    RequestCancelled,
    SlotIntegrity,
)
from lorry.ids import AdapterKey, RequestId
from lorry.request import TokenLogprobs
from lorry.scheduler import Ending, ScheduledRequest, Scheduler, SequenceUpdate
from lorry.text import Tokenizer

log = logging.getLogger(__name__)

Outcome = tuple[RequestId, EngineEvent | LorryError]

TextOf = Callable[[AdapterKey], Tokenizer | None]
"""The own text side of an adapter, None where it is the base's. Raises AdapterLoadFailed for one that is not here."""

FAULTS = (SlotIntegrity.reason, NonFiniteLogits.reason, ProvenanceMismatch.reason)
"""Reasons of errors that nobody asked for: they are logged and counted."""


@dataclass(slots=True, eq=False)
class _Choice:
    """``request_id`` is the scheduler's. ``stream`` is there from its first update on, when the adapter's own text side
    is in host memory. It ends once, and ``ending`` with it."""

    call: _Call
    index: int
    request_id: RequestId
    stream: OutputStream | None = None
    end: ChoiceEnd | None = None
    ending: Ending | None = None


@dataclass(slots=True, eq=False)
class _Call:
    """``waiting`` holds back what comes before Started, which choice 0 brings. ``tokenizer``: what its text is made
    with, once its adapter ran."""

    request: EngineRequest
    choices: list[_Choice] = field(default_factory=list)
    started: bool = False
    waiting: list[EngineEvent] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list, repr=False)
    tokenizer: Tokenizer | None = None

    @property
    def request_id(self) -> RequestId:
        return self.request.request_id

    @property
    def adapter(self) -> AdapterKey | None:
        return self.request.adapter.key if self.request.adapter else None


class Calls:
    """Every live call. Belongs to the step loop's thread.

    Choice 0 is known to the scheduler by the call's own id, choice i by ``<id>/<i>``; ids of calls must not look like
    that (LocalEngine's end in ``#`` and a number). Queue and TTFT timeouts are choice 0's: when the others begin, the
    call has its first token.
    """

    def __init__(
        self,
        scheduler: Scheduler[AdapterRef],
        tokenizer: Tokenizer,
        verify: Callable[[AdapterKey, int], None],
        provenance: ProvenanceOf,
        emit: Callable[[EngineOccurrence], None],
        clock: Callable[[], float],
        text: TextOf = lambda adapter: None,
    ) -> None:
        """``verify`` (adapter, step) raises SlotIntegrity where the device no longer holds what it loaded."""
        self._scheduler = scheduler
        self._tokenizer = tokenizer
        self._verify = verify
        self._provenance = provenance
        self._emit = emit
        self._clock = clock
        self._text = text
        self._calls: dict[RequestId, _Call] = {}
        self._choices: dict[RequestId, _Choice] = {}

    def live(self) -> list[RequestId]:
        """Ids of calls that will get a further event."""
        return list(self._calls)

    def open(self, request: EngineRequest, arrived: float) -> None:
        """All choices are added to the scheduler, or none. Raises what ``Scheduler.add`` raises."""
        if request.request_id in self._calls:
            raise AlreadyExists(f"request_id {request.request_id!r} is in use by a live request; choose another")
        call = _Call(request)
        for index in range(request.n):
            request_id = RequestId(f"{request.request_id}/{index}") if index else request.request_id
            call.choices.append(_Choice(call, index, request_id))
        added: list[_Choice] = []
        try:
            for choice in call.choices:
                self._scheduler.add(_scheduled(choice, arrived))
                added.append(choice)
        except BaseException:  # all choices or none, whatever stopped it
            for choice in added:
                self._scheduler.abort(choice.request_id)
            raise
        self._calls[request.request_id] = call
        self._choices.update((choice.request_id, choice) for choice in call.choices)
        self._emit(RequestAdmitted(request.request_id, request.tenant, call.adapter, len(request.prompt), arrived))

    def abort(self, request_id: RequestId) -> None:
        """Ends the call without a further event. Unknown and ended ones are passed over."""
        call = self._calls.get(request_id)
        if call is not None:
            self._close(call, RequestCancelled.reason, 0)

    def fail(self, request_id: RequestId, error: LorryError) -> list[Outcome]:
        """A sequence of the scheduler ended by ``error`` outside a step: so does its call, if it lives."""
        choice = self._choices.get(request_id)
        return [] if choice is None else self._fail(choice.call, error)

    def can_wait(self, update: SequenceUpdate) -> bool:
        """It neither begins an answer nor ends one, and no text of its own can."""
        if update.first is not None or update.finish is not None or update.error is not None:
            return False
        choice = self._choices.get(update.request_id)
        return choice is not None and not choice.call.request.stopping.stop

    def update(self, update: SequenceUpdate, step: int) -> list[Outcome]:
        """What readers are told of one sequence's news from ``step``."""
        choice = self._choices.get(update.request_id)
        if choice is None:
            return []
        call = choice.call
        error = update.error or _fault_of(choice, update) or self._open_text(choice)
        if error is not None:
            return self._fail(call, error)
        call.prompt_logprobs.extend(update.prompt_logprobs)
        if update.first is not None and choice.index == 0:
            self._start(call, update)
        matched, ending = self._take_tokens(choice, update)
        outcomes: list[Outcome] = []
        if call.started:
            outcomes.extend((call.request_id, event) for event in call.waiting)
            call.waiting.clear()
        if ending is not None:
            outcomes.extend(self._finish(choice, update.adapter, ending, matched, step))
        return outcomes

    def _open_text(self, choice: _Choice) -> LorryError | None:
        """Its stream, with the text side of the adapter that is loaded, which must be the one that was named."""
        if choice.stream is not None:
            return None
        call, request = choice.call, choice.call.request
        if call.tokenizer is None:
            try:
                own = None if call.adapter is None else self._text(call.adapter)
            except LorryError as error:  # the host tier lost it meanwhile: this call's fault alone
                return error
            tokenizer = own or self._tokenizer
            want = self._tokenizer.sha256 if request.text is None else request.text.sha256
            if tokenizer.sha256 != want:
                return ProvenanceMismatch(
                    f"tokenizer: adapter {call.adapter} is loaded with {tokenizer.sha256}, the request named {want}; "
                    "nothing was answered, report this",
                    metadata={"field": "tokenizer", "want": want, "have": tokenizer.sha256},
                )
            call.tokenizer = tokenizer
        choice.stream = OutputStream(call.tokenizer, request.prompt, request.stopping)
        return None

    def _stated(self, call: _Call, adapter: AdapterKey | None) -> Provenance:
        """Of the adapter that the slot table named, with the text side that its text was made with."""
        assert call.tokenizer is not None
        return replace(
            self._provenance(None if adapter is None else adapter.digest), tokenizer_sha256=call.tokenizer.sha256
        )

    def _start(self, call: _Call, update: SequenceUpdate) -> None:
        first = update.first
        assert first is not None
        now = self._clock()
        self._emit(
            RequestStarted(call.request_id, update.adapter, first.tier, first.queue_s, first.adapter_load_s, now)
        )
        prompt_logprobs, call.prompt_logprobs = tuple(call.prompt_logprobs), []
        provenance = self._stated(call, update.adapter)
        call.waiting.insert(0, Started(provenance, first.tier, first.queue_s, first.adapter_load_s, prompt_logprobs))
        call.started = True

    def _take_tokens(self, choice: _Choice, update: SequenceUpdate) -> tuple[str, Ending | None]:
        """Its tokens wait for delivery. Returns the stop string that ended it, or '', and its ending if it has one."""
        assert choice.stream is not None
        piece = choice.stream.push(update.tokens)
        text, matched, ending = piece.text, piece.matched_stop, update.finish
        if matched and ending is None:
            ending = self._scheduler.finish(choice.request_id)
        elif ending is not None and not matched:
            rest = choice.stream.flush()
            text, matched = text + rest.text, rest.matched_stop
        if update.tokens or text:
            choice.call.waiting.append(Tokens(update.tokens, text, choice.index, update.logprobs))
        return matched, ending

    def _finish(
        self, choice: _Choice, adapter: AdapterKey | None, ending: Ending, matched: str, step: int
    ) -> list[Outcome]:
        """One choice has ended, on a slot that still holds its adapter; and with the last one the call."""
        call = choice.call
        if adapter is not None:
            try:
                self._verify(adapter, step)
            except SlotIntegrity as error:
                self._scheduler.slot_lost(adapter)
                return self._fail(call, error)
        reason, stop_id = ("stop", None) if matched else (ending.reason, ending.matched_stop_id)
        choice.end, choice.ending = ChoiceEnd(reason, matched, stop_id, ending.output_tokens), ending
        del self._choices[choice.request_id]
        ends = [one.end for one in call.choices if one.end is not None]
        if len(ends) < len(call.choices):
            return []
        finished = _finished(call, self._stated(call, adapter), ends)
        self._close(call, finished.reason, finished.output_tokens)
        return [(call.request_id, finished)]

    def _fail(self, call: _Call, error: LorryError) -> list[Outcome]:
        if error.reason in FAULTS:
            log.error("request %s ended: %s", call.request_id, error)
        self._close(call, error.reason, 0)
        return [(call.request_id, error)]

    def _close(self, call: _Call, outcome: str, output_tokens: int) -> None:
        """Nothing of the call is known from here on; what still runs of it is aborted."""
        del self._calls[call.request_id]
        for choice in call.choices:
            if self._choices.pop(choice.request_id, None) is not None:
                self._scheduler.abort(choice.request_id)
        self._emit(RequestEnded(call.request_id, outcome, output_tokens, self._clock()))


def _scheduled(choice: _Choice, arrived: float) -> ScheduledRequest[AdapterRef]:
    request, first = choice.call.request, choice.index == 0

    def at(seconds: float | None) -> float | None:
        return None if seconds is None else arrived + seconds

    return ScheduledRequest(
        request_id=choice.request_id,
        tenant=request.tenant,
        prompt=request.prompt,
        ref=request.adapter,
        sampling=request.sampling,
        stopping=request.stopping,
        deadline=at(request.deadline_s),
        queue_deadline=at(request.queue_timeout_s) if first else None,
        reject_cold=request.reject_cold,
        ttft_deadline=at(request.ttft_timeout_s) if first else None,
        priority=request.priority,
        output=request.output if first else replace(request.output, prompt_logprobs=None),
        cache_salt=request.cache_salt,
        cache_scope=request.cache_scope,
        choice=choice.index,
        after=None if first else request.request_id,
        end_ids=None if request.text is None else request.text.end_ids,
        tokenizer_sha256="" if request.text is None else request.text.sha256,
        weight=request.weight,
    )


def _fault_of(choice: _Choice, update: SequenceUpdate) -> LorryError | None:
    """Why an update must not be passed on: one Finished states one adapter for all choices, and readers pair logprobs
    with ids by their places."""
    call, request = choice.call, choice.call.request
    stated = update.tokens or update.first is not None or update.finish is not None
    if stated and update.adapter != call.adapter:
        return SlotIntegrity(f"choice {choice.index} ran on adapter {update.adapter}; {call.adapter} was asked for")
    if request.output.top_logprobs is not None and tuple(one.token_id for one in update.logprobs) != update.tokens:
        return InternalError(f"the logprobs of choice {choice.index} are not those of its tokens")
    if update.first is not None and not choice.index and request.output.prompt_logprobs is not None:
        scored = tuple(one.token_id for one in (*call.prompt_logprobs, *update.prompt_logprobs))
        if scored != request.prompt[1:]:
            return InternalError("the prompt's logprobs are not those of its tokens")
    return None


def _finished(call: _Call, provenance: Provenance, ends: list[ChoiceEnd]) -> Finished:
    endings = [choice.ending for choice in call.choices if choice.ending is not None]
    first = endings[0]
    return Finished(
        provenance=provenance,
        choices=tuple(ends),
        prompt_tokens=first.prompt_tokens,
        output_tokens=sum(end.output_tokens for end in ends),
        cached_prompt_tokens=first.cached_prompt_tokens,
        prefill_s=first.prefill_s,
        ttft_s=first.ttft_s,
        # All choices are added at one moment, which their times count from.
        decode_s=max(ending.ttft_s + ending.decode_s for ending in endings) - first.ttft_s,
        max_distinct_adapters=max(ending.max_distinct_adapters for ending in endings),
        min_distinct_adapters=min(ending.min_distinct_adapters for ending in endings),
    )


__all__ = ["FAULTS", "Calls", "Outcome", "TextOf"]
