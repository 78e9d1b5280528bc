"""A model that is made up: tokens and logprobs that depend on their request alone. For tests."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

from lorry.engine.contract import ChoiceEnd, EngineRequest, Tokens
from lorry.engine.output import OutputStream
from lorry.request import TokenLogprobs
from lorry.text import Tokenizer


class FakeModel:
    """Token i of a choice depends on (adapter digest, prompt, i), and on (seed, choice) where the temperature is not 0;
    penalties and bias change nothing. Logprobs are eighths, which float32 holds exactly; the token itself is the
    likeliest."""

    def __init__(self, tokenizer: Tokenizer, eos_ids: frozenset[int], texts: Mapping[str, Tokenizer]) -> None:
        """``texts``: versions' own text sides by digest, for requests that name one."""
        self._tokenizer = tokenizer
        self._texts = texts
        self._eos = eos_ids
        self._plain = [i for i in range(tokenizer.vocabulary) if tokenizer.token(i) is not None]
        self.script: Callable[[EngineRequest], Sequence[int]] | None = None
        """Names a request's tokens instead, the same for every choice."""

    def choice(self, request: EngineRequest, choice: int) -> Generator[Tokens, None, ChoiceEnd]:
        """One event a token; a stop id is not among them. Returns how the choice ended."""
        tokenizer = self._tokenizer if request.text is None else self._texts.get(request.text.sha256, self._tokenizer)
        stopping, text = request.stopping, OutputStream(tokenizer, request.prompt, request.stopping)
        count = 0
        for token in self._tokens(request, choice):
            count += 1
            if count > stopping.min_tokens and self._is_stop(token, request):
                rest = text.flush()
                if rest.text:
                    yield Tokens((), rest.text, choice)
                return ChoiceEnd("stop", rest.matched_stop, None if rest.matched_stop else token, count)
            piece = text.push((token,))
            emit, matched, last = piece.text, piece.matched_stop, count == stopping.max_tokens
            if last and not matched:
                rest = text.flush()
                emit, matched = emit + rest.text, rest.matched_stop
            yield Tokens((token,), emit, choice, self._logprobs(request, choice, count, token))
            if matched:
                return ChoiceEnd("stop", matched, None, count)
            if last:
                break
        return ChoiceEnd("length", "", None, count)

    def prompt_logprobs(self, request: EngineRequest) -> tuple[TokenLogprobs, ...]:
        most = request.output.prompt_logprobs
        if most is None:
            return ()
        key = _key(request) + b"|prompt"
        return tuple(self._score(key, i, token, most) for i, token in enumerate(request.prompt) if i)

    def _logprobs(self, request: EngineRequest, choice: int, index: int, token: int) -> tuple[TokenLogprobs, ...]:
        most = request.output.top_logprobs
        return () if most is None else (self._score(_key(request, choice), index, token, most),)

    def _score(self, key: bytes, index: int, token: int, most: int) -> TokenLogprobs:
        drawn = _draw(key + b"|logprob", index)
        own = -(drawn % 64) / 8
        others = (self._plain[(drawn + i) % len(self._plain)] for i in range(most))
        likeliest = [token, *(other for other in others if other != token)]
        return TokenLogprobs(token, own, tuple((t, own - i / 8) for i, t in enumerate(likeliest[:most])))

    def _tokens(self, request: EngineRequest, choice: int) -> Iterator[int]:
        if self.script is not None:
            yield from self.script(request)
            return
        key = _key(request, choice)
        for index in range(request.stopping.max_tokens):
            yield self._plain[_draw(key, index) % len(self._plain)]

    def _is_stop(self, token: int, request: EngineRequest) -> bool:
        eos = self._eos if request.text is None else request.text.end_ids
        ends = token in eos and not request.stopping.ignore_eos
        return ends or token in request.stopping.stop_token_ids


def _key(request: EngineRequest, choice: int = 0) -> bytes:
    drawn = f"{request.sampling.seed}|{choice}" if request.sampling.temperature else "greedy"
    return f"{request.adapter.digest if request.adapter else ''}|{request.prompt}|{drawn}".encode()


def _draw(key: bytes, index: int) -> int:
    return int.from_bytes(hashlib.sha256(key + b"|%d" % index).digest()[:8])


__all__ = ["FakeModel"]
