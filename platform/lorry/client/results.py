"""What comes back. ``resolved``, ``usage``, ``timings``, ``effective`` are the messages of ``generate.proto``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lorry.api.v1 import generate_pb2 as pb
from lorry.errors import EmptyStream, InternalError
from lorry.request import TokenLogprobs

_REASONS: Mapping[int, str] = {pb.FINISH_REASON_STOP: "stop", pb.FINISH_REASON_LENGTH: "length"}


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the ``n`` answers. ``finish_reason``: ``stop`` or ``length``. ``logprobs`` are there where they were asked
    for. ``output_tokens`` counts a stop id, which is not among the tokens."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    matched_stop: str
    matched_stop_id: int | None
    logprobs: tuple[TokenLogprobs, ...]
    output_tokens: int


class OfFirstChoice(ABC):
    """The first choice's fields by their own names: all that there is to one answer."""

    __slots__ = ()

    @abstractmethod
    def _first(self) -> Choice: ...

    @property
    def text(self) -> str:
        return self._first().text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self._first().token_ids

    @property
    def finish_reason(self) -> str:
        return self._first().finish_reason

    @property
    def matched_stop(self) -> str:
        return self._first().matched_stop

    @property
    def matched_stop_id(self) -> int | None:
        return self._first().matched_stop_id

    @property
    def logprobs(self) -> tuple[TokenLogprobs, ...]:
        return self._first().logprobs


@dataclass(frozen=True, slots=True)
class Result(OfFirstChoice):
    """One whole answer, of one choice or several. ``text``, ``finish_reason`` and so on are of the first. ``resolved``
    proves which weights answered. ``prompt_logprobs``: of every prompt token but the first, where asked for."""

    choices: tuple[Choice, ...]
    resolved: pb.ResolvedModel
    usage: pb.Usage
    timings: pb.Timings
    effective: pb.EffectiveParams
    request_id: str
    prompt_logprobs: tuple[TokenLogprobs, ...]

    def _first(self) -> Choice:
        return self.choices[0]


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of one choice; ``str(delta)`` is its text."""

    text: str
    token_ids: tuple[int, ...]
    choice: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()

    def __str__(self) -> str:
        return self.text


def choices_of(request: pb.GenerateRequest) -> int:
    """How many choices the request asks for."""
    return request.sampling.n if request.sampling.HasField("n") else 1


def result(response: pb.GenerateResponse, n: int) -> Result:
    """``n``: how many choices were asked for. Raises InternalError where others came."""
    _check_choices(response.choices, n)
    return Result(
        tuple(
            Choice(
                choice.index,
                choice.text,
                tuple(choice.token_ids),
                _REASONS.get(choice.finish_reason, ""),
                choice.matched_stop,
                choice.matched_stop_id if choice.HasField("matched_stop_id") else None,
                _logprobs(choice.logprobs),
                choice.output_tokens,
            )
            for choice in response.choices
        ),
        response.model,
        response.usage,
        response.timings,
        response.effective,
        response.request_id,
        _logprobs(response.prompt_logprobs),
    )


@dataclass(slots=True)
class _Growing:
    """A choice while it comes."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    end: pb.ChoiceEnd = field(default_factory=pb.ChoiceEnd)

    def so_far(self, index: int) -> Choice:
        end = self.end
        return Choice(
            index,
            "".join(self.text),
            tuple(self.token_ids),
            _REASONS.get(end.finish_reason, ""),
            end.matched_stop,
            end.matched_stop_id if end.HasField("matched_stop_id") else None,
            tuple(self.logprobs),
            end.output_tokens,
        )


class StreamState(OfFirstChoice):
    """What is known of a stream so far; ``text``, ``finish_reason`` and so on are of the first choice. How choices
    ended, ``usage`` and ``timings`` are set when the stream has."""

    def __init__(self, n: int) -> None:
        self.request_id = ""
        self.resolved: pb.ResolvedModel | None = None
        """Set with the first delta: which weights answer, as the engine states it."""
        self.effective: pb.EffectiveParams | None = None
        self.prompt_tokens = 0
        self.prompt_logprobs: tuple[TokenLogprobs, ...] = ()
        self.usage: pb.Usage | None = None
        self.timings: pb.Timings | None = None
        self._n = n
        self._seq = 0
        self._growing: dict[int, _Growing] = defaultdict(_Growing)

    @property
    def n(self) -> int:
        """How many choices were asked for."""
        return self._n

    @property
    def begun(self) -> bool:
        """Whether a message has arrived: from then on nothing is tried again."""
        return self._seq > 0

    @property
    def choices(self) -> tuple[Choice, ...]:
        """All text and tokens so far, by choice."""
        return tuple(self._growing[index].so_far(index) for index in range(self._n))

    def _first(self) -> Choice:
        return self._growing[0].so_far(0)

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
                self.prompt_logprobs = _logprobs(message.start.prompt_logprobs)
            case "delta":
                return self._grow(message.delta)
            case "end":
                self._end(message.end)
        return None

    def _grow(self, sent: pb.Delta) -> Delta:
        if sent.choice >= self._n:
            raise InternalError(f"choice: the server sent number {sent.choice}, {self._n} were asked for")
        delta = Delta(sent.text, tuple(sent.token_ids), sent.choice, _logprobs(sent.logprobs))
        growing = self._growing[delta.choice]
        growing.text.append(delta.text)
        growing.token_ids.extend(delta.token_ids)
        growing.logprobs.extend(delta.logprobs)
        return delta

    def _end(self, end: pb.StreamEnd) -> None:
        if self.resolved is None or end.model.sha256 != self.resolved.sha256:
            raise InternalError("model: the stream's end states other weights than its start; discard the answer")
        _check_choices(end.choices, self._n)
        self.usage, self.timings = end.usage, end.timings
        for choice in end.choices:
            self._growing[choice.index].end = choice

    def _close(self) -> None:
        """The server ended the stream without an error: that is right only after StreamEnd."""
        if self.usage is None:
            raise EmptyStream("the stream ended without its StreamEnd; the answer is not whole, send it again")


def _check_choices(choices: Iterable[pb.Choice | pb.ChoiceEnd], n: int) -> None:
    found = [choice.index for choice in choices]
    if found != list(range(n)):
        raise InternalError(f"choices: the server sent numbers {found[:20]}, {n} from 0 on were asked for")


def _logprobs(found: Iterable[pb.TokenLogprobs]) -> tuple[TokenLogprobs, ...]:
    return tuple(
        TokenLogprobs(one.token_id, one.logprob, tuple((top.token_id, top.logprob) for top in one.top)) for one in found
    )


__all__ = ["Choice", "Delta", "OfFirstChoice", "Result", "StreamState", "choices_of", "result"]
