"""What a call to GenerateService came to, read to its end whatever that was."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from google.rpc import error_details_pb2, status_pb2

from lorry.api.status import DETAILS_KEY, error_from_rpc
from lorry.api.v1 import generate_pb2 as pb
from lorry.errors import LorryError

ENDS_WITHIN_S = 120.0
"""A call that has not ended by then hangs: hundreds at once take tens of seconds beside other work on the machine."""


@dataclass(frozen=True)
class Choice:
    """One choice of an answer, whole; ``ending`` has its finish reason, matched stop and matched id."""

    index: int
    ids: list[int]
    text: str
    logprobs: list[pb.TokenLogprobs]
    ending: pb.ChoiceEnd | pb.Choice


@dataclass
class Answer:
    """``messages`` of a stream, or the one of a unary call; ``code`` OK where there is no error."""

    messages: list[Any] = field(default_factory=list)
    error: LorryError | None = None
    code: grpc.StatusCode = grpc.StatusCode.OK
    trailers: dict[str, Any] = field(default_factory=dict)

    @property
    def _unary(self) -> pb.GenerateResponse | None:
        first = self.messages[0] if self.messages else None
        return first if isinstance(first, pb.GenerateResponse) else None

    def _events(self, kind: str) -> list[Any]:
        return [getattr(message, kind) for message in self.messages if message.WhichOneof("event") == kind]

    @property
    def start(self) -> pb.StreamStart:
        start: pb.StreamStart = self._events("start")[0]
        return start

    @property
    def end(self) -> pb.StreamEnd:
        end: pb.StreamEnd = self._events("end")[0]
        return end

    @property
    def ids(self) -> list[int]:
        """Of the first choice, like ``text`` and ``ending``."""
        return self.choices[0].ids

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def choices(self) -> list[Choice]:
        """All that the answer ends; a stream that broke off has one, of whatever came."""
        if self._unary is not None:
            whole = self._unary.choices
            return [Choice(c.index, list(c.token_ids), c.text, list(c.logprobs), c) for c in whole]
        ends = [ending for end in self._events("end") for ending in end.choices] or [pb.ChoiceEnd()]
        return [self._streamed(ending) for ending in ends]

    def _streamed(self, ending: pb.ChoiceEnd) -> Choice:
        mine = [delta for delta in self._events("delta") if delta.choice == ending.index]
        return Choice(
            ending.index,
            [i for delta in mine for i in delta.token_ids],
            "".join(delta.text for delta in mine),
            [one for delta in mine for one in delta.logprobs],
            ending,
        )

    @property
    def prompt_logprobs(self) -> list[pb.TokenLogprobs]:
        return list((self._unary or self.start).prompt_logprobs)

    @property
    def resolved(self) -> Sequence[pb.ResolvedModel]:
        """Everything the answer states about its weights."""
        if self._unary is not None:
            return [self._unary.model]
        return [event.model for kind in ("start", "end") for event in self._events(kind)]

    @property
    def ending(self) -> pb.ChoiceEnd | pb.Choice:
        """Finish reason, matched stop and matched id."""
        return self.choices[0].ending

    @property
    def usage(self) -> pb.Usage:
        return self._unary.usage if self._unary is not None else self.end.usage

    @property
    def timings(self) -> pb.Timings:
        return self._unary.timings if self._unary is not None else self.end.timings

    @property
    def effective(self) -> pb.EffectiveParams:
        return self._unary.effective if self._unary is not None else self.start.effective

    @property
    def details_reason(self) -> str:
        """The reason in the status's own details; empty where it came without."""
        info = error_details_pb2.ErrorInfo()
        return info.reason if self._detail(info) else ""

    @property
    def retry_after_s(self) -> float | None:
        """RetryInfo's delay."""
        retry = error_details_pb2.RetryInfo()
        return retry.retry_delay.ToMilliseconds() / 1000 if self._detail(retry) else None

    def _detail(self, into: Any) -> bool:
        status = status_pb2.Status.FromString(self.trailers.get(DETAILS_KEY, b""))
        return any(detail.Unpack(into) for detail in status.details)

    def check_whole(self) -> None:
        """One StreamStart first, one StreamEnd last, `seq` without a gap, both ends of one mind."""
        choices = self.choices
        assert [choice.index for choice in choices] == list(range(len(choices)))
        assert self.usage.output_tokens == sum(choice.ending.output_tokens for choice in choices)
        if self._unary is not None:
            return
        kinds = [message.WhichOneof("event") for message in self.messages]
        assert kinds[:1] == ["start"], kinds
        assert kinds[-1] == "end", kinds
        assert set(kinds[1:-1]) <= {"delta"}, kinds
        assert [message.seq for message in self.messages] == list(range(len(self.messages)))
        assert self.start.model == self.end.model
        assert {delta.choice for delta in self._events("delta")} <= set(range(len(choices)))
        for choice in choices:
            # A stop id is counted, being generated, but is no part of the answer.
            assert choice.ending.output_tokens == len(choice.ids) + choice.ending.HasField("matched_stop_id")


async def read_stream(call: Any) -> Answer:
    answer = Answer()
    try:
        async with asyncio.timeout(ENDS_WITHIN_S):
            async for message in call:
                answer.messages.append(message)
    except grpc.aio.AioRpcError as error:
        _failed(answer, error)
    return answer


async def read_unary(call: Any) -> Answer:
    answer = Answer()
    try:
        async with asyncio.timeout(ENDS_WITHIN_S):
            answer.messages.append(await call)
    except grpc.aio.AioRpcError as error:
        _failed(answer, error)
    return answer


def _failed(answer: Answer, error: grpc.aio.AioRpcError) -> None:
    answer.error, answer.code = error_from_rpc(error), error.code()
    trailers: Any = error.trailing_metadata() or ()
    answer.trailers = dict(trailers)


__all__ = ["ENDS_WITHIN_S", "Answer", "Choice", "read_stream", "read_unary"]
