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

ENDS_WITHIN_S = 30.0
"""A call that has not ended by then hangs."""


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
        if self._unary is not None:
            return list(self._unary.choices[0].token_ids)
        return [i for delta in self._events("delta") for i in delta.token_ids]

    @property
    def text(self) -> str:
        if self._unary is not None:
            return self._unary.choices[0].text
        return "".join(delta.text for delta in self._events("delta"))

    @property
    def resolved(self) -> Sequence[pb.ResolvedModel]:
        """Everything the answer states about its weights."""
        if self._unary is not None:
            return [self._unary.model]
        return [event.model for kind in ("start", "end") for event in self._events(kind)]

    @property
    def ending(self) -> pb.ChoiceEnd | pb.Choice:
        """Finish reason, matched stop and matched id."""
        return self._unary.choices[0] if self._unary is not None else self.end.choices[0]

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
        if self._unary is not None:
            assert len(self._unary.choices) == 1
            return
        kinds = [message.WhichOneof("event") for message in self.messages]
        assert kinds[:1] == ["start"], kinds
        assert kinds[-1] == "end", kinds
        assert set(kinds[1:-1]) <= {"delta"}, kinds
        assert [message.seq for message in self.messages] == list(range(len(self.messages)))
        assert self.start.model == self.end.model
        assert len(self.end.choices) == 1
        # A stop id is counted, being generated, but is no part of the answer.
        assert self.usage.output_tokens == len(self.ids) + self.ending.HasField("matched_stop_id")


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


__all__ = ["ENDS_WITHIN_S", "Answer", "read_stream", "read_unary"]
