"""The service layer's events and answers as OpenAI's objects: one form for chats, one for completions."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from lorry.api.v1 import generate_pb2 as pb
from lorry.errors import InternalError
from lorry.gateway.http import proof
from lorry.gateway.http.logprobs import CompletionLogprobs, Spellings, chat_logprobs
from lorry.gateway.http.requests import Wanted

_FINISH = {pb.FINISH_REASON_STOP: "stop", pb.FINISH_REASON_LENGTH: "length"}


class Form(ABC):
    """One answer. ``spellings`` where logprobs are wanted; they know the ids of what is written. Call ``start``, then
    ``delta`` for each, then ``end``; or ``whole`` alone."""

    kind: str
    chunk_kind: str
    prefix: str

    def __init__(self, wanted: Wanted, spellings: Spellings | None) -> None:
        self._wanted = wanted
        self._spellings = spellings
        self._head: dict[str, Any] = {}

    def start(self, event: pb.StreamStart) -> dict[str, Any]:
        """The first chunk: an empty beginning of each choice, and the proof."""
        self._head = self._common(event.request_id, event.model, self.chunk_kind)
        n = self._wanted.message.sampling.n or 1
        return self._chunk([self._opening(index) for index in range(n)], {"lorry": proof.begun(event)})

    def delta(self, event: pb.Delta) -> dict[str, Any]:
        choice = self._piece(event)
        if self._wanted.message.output.token_ids:
            choice["token_ids"] = list(event.token_ids)
        return self._chunk([choice])

    def end(self, event: pb.StreamEnd) -> Iterator[dict[str, Any]]:
        """A last chunk for each choice, then usage where it is wanted; the proof comes with the last of all."""
        chunks = [self._chunk([self._closing(one.index, finish_reason(one))]) for one in event.choices]
        if self._wanted.include_usage:
            chunks.append({**self._chunk([]), "usage": proof.usage(event.usage)})
        chunks[-1]["lorry"] = proof.ended(event)
        return iter(chunks)

    def whole(self, answer: pb.GenerateResponse) -> dict[str, Any]:
        choices = []
        for one in answer.choices:
            choice = self._choice(one)
            if self._wanted.message.output.token_ids:
                choice["token_ids"] = list(one.token_ids)
            choices.append(choice)
        return {
            **self._common(answer.request_id, answer.model, self.kind),
            "choices": choices,
            "usage": proof.usage(answer.usage),
            "lorry": proof.whole(answer),
        }

    def _common(self, request_id: str, model: pb.ResolvedModel, kind: str) -> dict[str, Any]:
        return {
            "id": f"{self.prefix}-{request_id}",
            "object": kind,
            "created": int(time.time()),
            "model": self._wanted.message.model,
            "system_fingerprint": model.engine_build,
        }

    def _chunk(self, choices: list[dict[str, Any]], more: dict[str, Any] | None = None) -> dict[str, Any]:
        chunk = {**self._head, "choices": choices, **(more or {})}
        if self._wanted.include_usage:
            chunk["usage"] = None
        return chunk

    @abstractmethod
    def _opening(self, index: int) -> dict[str, Any]: ...

    @abstractmethod
    def _piece(self, event: pb.Delta) -> dict[str, Any]: ...

    @abstractmethod
    def _closing(self, index: int, reason: str) -> dict[str, Any]: ...

    @abstractmethod
    def _choice(self, choice: pb.Choice) -> dict[str, Any]: ...


class ChatForm(Form):
    kind, chunk_kind, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def _opening(self, index: int) -> dict[str, Any]:
        return _choice(index, "delta", {"role": "assistant", "content": ""}, None, None)

    def _piece(self, event: pb.Delta) -> dict[str, Any]:
        return _choice(event.choice, "delta", {"content": event.text}, self._logprobs(event.logprobs), None)

    def _closing(self, index: int, reason: str) -> dict[str, Any]:
        return _choice(index, "delta", {}, None, reason)

    def _choice(self, choice: pb.Choice) -> dict[str, Any]:
        message = {"role": "assistant", "content": choice.text, "refusal": None}
        return _choice(choice.index, "message", message, self._logprobs(choice.logprobs), finish_reason(choice))

    def _logprobs(self, found: Sequence[pb.TokenLogprobs]) -> dict[str, Any] | None:
        return None if self._spellings is None else chat_logprobs(found, self._spellings)


class CompletionForm(Form):
    kind = chunk_kind = "text_completion"
    prefix = "cmpl"

    def __init__(self, wanted: Wanted, spellings: Spellings | None) -> None:
        super().__init__(wanted, spellings)
        self._logprobs_of: dict[int, CompletionLogprobs] = {}

    def _opening(self, index: int) -> dict[str, Any]:
        return _choice(index, "text", "", None, None)

    def _piece(self, event: pb.Delta) -> dict[str, Any]:
        return _choice(event.choice, "text", event.text, self._logprobs(event.choice, event.logprobs), None)

    def _closing(self, index: int, reason: str) -> dict[str, Any]:
        return _choice(index, "text", "", None, reason)

    def _choice(self, choice: pb.Choice) -> dict[str, Any]:
        logprobs = self._logprobs(choice.index, choice.logprobs)
        return _choice(choice.index, "text", choice.text, logprobs, finish_reason(choice))

    def _logprobs(self, index: int, found: Sequence[pb.TokenLogprobs]) -> dict[str, Any] | None:
        if self._spellings is None:
            return None
        return self._logprobs_of.setdefault(index, CompletionLogprobs(self._spellings)).push(found)


def finish_reason(choice: pb.Choice | pb.ChoiceEnd) -> str:
    try:
        return _FINISH[choice.finish_reason]
    except KeyError:
        raise InternalError(f"finish_reason: {choice.finish_reason} has no name in OpenAI's API") from None


def _choice(index: int, name: str, value: Any, logprobs: dict[str, Any] | None, reason: str | None) -> dict[str, Any]:
    return {"index": index, name: value, "logprobs": logprobs, "finish_reason": reason}


__all__ = ["ChatForm", "CompletionForm", "Form", "finish_reason"]
