"""Calls: what goes to the scheduler for each choice, and which of its news reach a reader, in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from lorry.adapters.manifest import AdapterRef
from lorry.engine.choices import Calls, Outcome
from lorry.engine.contract import ChoiceEnd, EngineRequest, Finished, Provenance, Started, Tokens
from lorry.engine.events import EngineOccurrence, RequestAdmitted, RequestEnded, RequestStarted
from lorry.errors import AlreadyExists, InternalError, Overloaded, RequestCancelled, SlotIntegrity
from lorry.ids import AdapterDigest, AdapterKey, BaseDigest, RequestId, TenantId
from lorry.request import OutputParams, SamplingParams, StoppingParams, TokenLogprobs
from lorry.scheduler import Ending, FirstStep, ScheduledRequest, Scheduler, SequenceUpdate
from tests.unit.engine_contract.fakes import adapter_ref, tokenizer

ADAPTER = adapter_ref("one")
DIGEST = ADAPTER.digest
FIRST = FirstStep("disk", 0.5, 0.25)


class Book:
    """A scheduler that only keeps what it is told; ``room`` is how many requests it takes."""

    def __init__(self) -> None:
        self.added: list[ScheduledRequest[AdapterRef]] = []
        self.aborted: list[str] = []
        self.lost: list[str] = []
        self.room = 100

    def add(self, request: ScheduledRequest[AdapterRef]) -> None:
        if len(self.added) - len(self.aborted) >= self.room:
            raise Overloaded("full")
        self.added.append(request)

    def abort(self, request_id: RequestId) -> None:
        self.aborted.append(request_id)

    def slot_lost(self, adapter: AdapterKey) -> None:
        self.lost.append(adapter.digest)


@dataclass
class Desk:
    """Calls over a Book, with what they tell."""

    book: Book = field(default_factory=Book)
    told: list[EngineOccurrence] = field(default_factory=list)
    verified: list[tuple[str, int]] = field(default_factory=list)
    damaged: bool = False

    def __post_init__(self) -> None:
        def provenance(adapter: AdapterDigest | None) -> Provenance:
            return Provenance(adapter, BaseDigest("b" * 64), "t", "float32", "build", "replica")

        scheduler = cast(Scheduler[AdapterRef], self.book)
        self.calls = Calls(scheduler, tokenizer(), self.verify, provenance, self.told.append, lambda: 1.0)

    def verify(self, adapter: AdapterKey, step: int) -> None:
        self.verified.append((adapter.digest, step))
        if self.damaged:
            raise SlotIntegrity("damaged")

    def open(self, **changes: Any) -> EngineRequest:
        request = EngineRequest(
            RequestId("r#1"),
            TenantId("t"),
            (1, 2, 3),
            ADAPTER,
            BaseDigest("b" * 64),
            SamplingParams(seed=9),
            StoppingParams(max_tokens=4),
        )
        request = replace(request, **changes)
        self.calls.open(request, arrived=100.0)
        return request

    def tell(self, request_id: str, *tokens: int, step: int = 0, **changes: Any) -> list[Any]:
        """The events, or the error, that an update leads to."""
        update = SequenceUpdate(RequestId(request_id), tokens, ADAPTER.key)
        for name, value in changes.items():
            setattr(update, name, value)
        return _events(self.calls.update(update, step))

    @property
    def ended(self) -> list[tuple[str, int]]:
        return [(event.outcome, event.output_tokens) for event in self.told if isinstance(event, RequestEnded)]


def _events(outcomes: Sequence[Outcome]) -> list[Any]:
    assert {request_id for request_id, _ in outcomes} <= {"r#1"}, "the call's own id, whatever choice it is of"
    return [event for _, event in outcomes]


def ending(tokens: int, at: float = 0.0, reason: str = "length", stop_id: int | None = None, mix: int = 1) -> Ending:
    """``at``: seconds from arrival to the last token."""
    return Ending(reason, stop_id, 3, tokens, 2, 0.25, 0.5, at - 0.5, mix + 2, mix)


def score(*tokens: int) -> tuple[TokenLogprobs, ...]:
    return tuple(TokenLogprobs(token, -1.0) for token in tokens)


def test_each_choice_is_a_sequence_that_names_its_number_and_the_first() -> None:
    desk = Desk()
    request = desk.open(
        n=3,
        output=OutputParams(4, 2),
        deadline_s=8.0,
        queue_timeout_s=1.0,
        ttft_timeout_s=2.0,
        priority=-3,
        cache_salt=b"salt",
        cache_scope="scope",
        reject_cold=True,
        weight=7,
    )
    first, *others = desk.book.added
    assert first == ScheduledRequest(
        RequestId("r#1"),
        TenantId("t"),
        (1, 2, 3),
        ADAPTER,
        request.sampling,
        request.stopping,
        deadline=108.0,
        queue_deadline=101.0,
        reject_cold=True,
        ttft_deadline=102.0,
        priority=-3,
        output=OutputParams(4, 2),
        cache_salt=b"salt",
        cache_scope="scope",
        weight=7,
    )
    own: dict[str, Any] = {
        "queue_deadline": None,
        "ttft_deadline": None,
        "output": OutputParams(4, None),
        "after": RequestId("r#1"),
    }
    for index, other in enumerate(others, 1):
        assert other == replace(first, request_id=RequestId(f"r#1/{index}"), choice=index, **own)
    assert [type(event) for event in desk.told] == [RequestAdmitted]


@pytest.mark.parametrize("room", [0, 1, 2])
def test_all_are_added_or_none(room: int) -> None:
    desk = Desk()
    desk.book.room = room
    with pytest.raises(Overloaded):
        desk.open(n=3)
    assert desk.book.aborted == [request.request_id for request in desk.book.added]
    assert len(desk.book.added) == room
    assert (desk.calls.live(), desk.told) == ([], [])
    for request in desk.book.added:
        assert desk.calls.fail(request.request_id, RequestCancelled("taken back")) == []
    desk.book.room = 3
    desk.open(n=3)
    assert desk.calls.live() == ["r#1"]


def test_a_live_calls_id_is_not_taken_again_although_its_first_choice_has_ended() -> None:
    desk = Desk()
    desk.open(n=2)
    desk.tell("r#1", 5, first=FIRST, finish=ending(1))
    with pytest.raises(AlreadyExists):
        desk.open(n=1)
    assert [type(event) for event in desk.tell("r#1/1", 5, finish=ending(1))] == [Tokens, Finished]


def test_another_choice_that_comes_first_waits_for_the_start() -> None:
    desk = Desk()
    desk.open(n=2)
    assert desk.tell("r#1/1", 5, first=FirstStep("device", 9.0, 9.0)) == []
    assert desk.tell("r#1/1", 6, finish=ending(2)) == []
    started, *tokens = desk.tell("r#1", 7, first=FIRST)
    assert started == Started(started.provenance, "disk", 0.5, 0.25)
    assert [(event.choice, event.token_ids) for event in tokens] == [(1, (5,)), (1, (6,)), (0, (7,))]
    assert [type(event) for event in desk.told] == [RequestAdmitted, RequestStarted]
    *_, finished = desk.tell("r#1", 8, finish=ending(2))
    assert isinstance(finished, Finished)


def test_the_end_states_every_choice_and_counts_the_prompt_once() -> None:
    desk = Desk()
    desk.open(n=3)
    assert [type(event) for event in desk.tell("r#1", 5, first=FIRST, finish=ending(1, at=1.5, mix=4))] == [
        Started,
        Tokens,
    ]
    assert desk.tell("r#1/2", step=3, finish=ending(2, at=9.5, reason="stop", stop_id=77, mix=2)) == []
    (tokens, finished) = desk.tell("r#1/1", 6, step=8, finish=ending(3, at=7.5, mix=3))
    assert tokens.choice == 1
    assert finished == Finished(
        provenance=finished.provenance,
        choices=(
            ChoiceEnd("length", "", None, 1),
            ChoiceEnd("length", "", None, 3),
            ChoiceEnd("stop", "", 77, 2),
        ),
        prompt_tokens=3,
        output_tokens=6,
        cached_prompt_tokens=2,
        prefill_s=0.25,
        ttft_s=0.5,
        decode_s=9.0,
        max_distinct_adapters=6,
        min_distinct_adapters=2,
    )
    assert finished.provenance.adapter == DIGEST
    assert desk.verified == [(DIGEST, 0), (DIGEST, 3), (DIGEST, 8)]
    assert desk.ended == [("length", 6)]
    assert (desk.book.aborted, desk.calls.live()) == ([], [])


def test_one_choices_error_ends_all_and_nothing_follows() -> None:
    desk = Desk()
    desk.open(n=3)
    desk.tell("r#1", 5, first=FIRST)
    error = InternalError("of choice 1")
    assert desk.tell("r#1/1", error=error) == [error]
    assert desk.book.aborted == ["r#1", "r#1/1", "r#1/2"]
    assert desk.tell("r#1", 6) == desk.tell("r#1/2", 6, finish=ending(1)) == []
    assert _events(desk.calls.fail(RequestId("r#1"), RequestCancelled("aborted"))) == []
    assert desk.ended == [("INTERNAL", 0)]


def test_an_error_outside_a_step_and_an_abort_end_all_once() -> None:
    desk = Desk()
    desk.open(n=2)
    error = RequestCancelled("deadline, say")
    assert _events(desk.calls.fail(RequestId("r#1/1"), error)) == [error]
    desk.calls.abort(RequestId("r#1"))
    assert desk.book.aborted == ["r#1", "r#1/1"]
    desk.open(n=2)
    desk.calls.abort(RequestId("r#1"))
    desk.calls.abort(RequestId("r#1"))
    assert desk.tell("r#1", 5, first=FIRST) == []
    assert desk.ended == [("CANCELLED", 0)] * 2
    assert desk.calls.live() == []


def test_a_damaged_slot_at_any_choices_end_ends_the_call() -> None:
    desk = Desk()
    desk.open(n=2)
    desk.tell("r#1", 5, first=FIRST)
    desk.damaged = True
    *_, error = desk.tell("r#1/1", 5, finish=ending(1))
    assert isinstance(error, SlotIntegrity)
    assert desk.book.lost == [DIGEST]
    assert desk.ended == [("SLOT_INTEGRITY", 0)]


@pytest.mark.parametrize("other", [None, "f" * 64])
def test_a_choice_that_ran_on_other_weights_ends_the_call_and_none_of_its_tokens_leave(other: Any) -> None:
    desk = Desk()
    desk.open(n=2)
    desk.tell("r#1", 5, first=FIRST)
    (error,) = desk.tell("r#1/1", 6, adapter=other)
    assert isinstance(error, SlotIntegrity)


def test_prompt_logprobs_come_over_several_steps_and_leave_once() -> None:
    desk = Desk()
    desk.open(n=2, output=OutputParams(prompt_logprobs=0))
    assert desk.tell("r#1", adapter=None, prompt_logprobs=score(2)) == []
    started, tokens = desk.tell("r#1", 5, prompt_logprobs=score(3), first=FIRST)
    assert started.prompt_logprobs == score(2, 3)
    assert tokens.logprobs == ()


@pytest.mark.parametrize("scored", [(), (2,), (3, 2), (2, 3, 4)])
def test_prompt_logprobs_of_other_tokens_are_not_passed_on(scored: tuple[int, ...]) -> None:
    desk = Desk()
    desk.open(output=OutputParams(prompt_logprobs=0))
    (error,) = desk.tell("r#1", 5, prompt_logprobs=score(*scored), first=FIRST)
    assert isinstance(error, InternalError)


@pytest.mark.parametrize("scored", [(), (6,), (5, 6)])
def test_logprobs_that_are_not_of_the_tokens_are_not_passed_on(scored: tuple[int, ...]) -> None:
    desk = Desk()
    desk.open(output=OutputParams(top_logprobs=0))
    assert desk.tell("r#1", 5, logprobs=score(5), first=FIRST)[-1] == Tokens((5,), tokenizer().decode([5]), 0, score(5))
    (error,) = desk.tell("r#1", 5, logprobs=score(*scored))
    assert isinstance(error, InternalError)
