"""What comes back. ``resolved``, ``usage``, ``timings``, ``effective`` are the messages of ``generate.proto``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lorry.api.v1 import generate_pb2 as pb
from lorry.errors import EmptyStream, InternalError

_REASONS: Mapping[int, str] = {pb.FINISH_REASON_STOP: "stop", pb.FINISH_REASON_LENGTH: "length"}


@dataclass(frozen=True, slots=True)
class Result:
    """One whole answer. ``finish_reason``: ``stop`` or ``length``. ``resolved`` proves which weights answered."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    matched_stop: str
    matched_stop_id: int | None
    resolved: pb.ResolvedModel
    usage: pb.Usage
    timings: pb.Timings
    effective: pb.EffectiveParams
    request_id: str


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of the answer; ``str(delta)`` is its text."""

    text: str
    token_ids: tuple[int, ...]

    def __str__(self) -> str:
        return self.text


def result(response: pb.GenerateResponse) -> Result:
    if len(response.choices) != 1:
        raise InternalError(f"choices: the server sent {len(response.choices)}, one was asked for")
    choice = response.choices[0]
    return Result(
        choice.text,
        tuple(choice.token_ids),
        _REASONS.get(choice.finish_reason, ""),
        choice.matched_stop,
        choice.matched_stop_id if choice.HasField("matched_stop_id") else None,
        response.model,
        response.usage,
        response.timings,
        response.effective,
        response.request_id,
    )


class StreamState:
    """What is known of a stream so far. Everything below ``prompt_tokens`` is set when the stream has ended."""

    def __init__(self) -> None:
        self.request_id = ""
        self.resolved: pb.ResolvedModel | None = None
        """Set with the first delta: which weights answer, as the engine states it."""
        self.effective: pb.EffectiveParams | None = None
        self.prompt_tokens = 0
        self.usage: pb.Usage | None = None
        self.timings: pb.Timings | None = None
        self.finish_reason = ""
        self.matched_stop = ""
        self.matched_stop_id: int | None = None
        self._seq = 0
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self._pieces)

    def _feed(self, message: pb.GenerateStreamResponse) -> Delta | None:
        if message.seq != self._seq:
            raise InternalError(f"seq: {message.seq} came where {self._seq} was due; the answer is not whole")
        self._seq += 1
        match message.WhichOneof("event"):
            case "start":
                self.request_id = message.start.request_id
                self.resolved = message.start.model
                self.effective = message.start.effective
                self.prompt_tokens = message.start.prompt_tokens
            case "delta":
                self._pieces.append(message.delta.text)
                return Delta(message.delta.text, tuple(message.delta.token_ids))
            case "end":
                self._end(message.end)
        return None

    def _end(self, end: pb.StreamEnd) -> None:
        if self.resolved is None or end.model.sha256 != self.resolved.sha256:
            raise InternalError("model: the stream's end states other weights than its start; discard the answer")
        self.usage, self.timings = end.usage, end.timings
        for choice in end.choices:
            self.finish_reason = _REASONS.get(choice.finish_reason, "")
            self.matched_stop = choice.matched_stop
            self.matched_stop_id = choice.matched_stop_id if choice.HasField("matched_stop_id") else None

    def _close(self) -> None:
        """The server ended the stream without an error: that is right only after StreamEnd."""
        if self.usage is None:
            raise EmptyStream("the stream ended without its StreamEnd; the answer is not whole, send it again")


__all__ = ["Delta", "Result", "StreamState", "result"]
