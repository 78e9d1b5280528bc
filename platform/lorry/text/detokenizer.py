"""Exact incremental detokenising: text leaves as soon as no later token can change it, and never before."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from lorry.text.pieces import byte_level_bytes
from lorry.text.tokenizer import Tokenizer

_UTF8_TAIL = 4
"""Bytes: what is pending after a byte stream depends on its last three bytes alone."""


class Detokenizer:
    """Text of the ids that follow a prompt.

    The law: ``certain(prompt) + push(..) + push(..) + ... + flush() == tokenizer.decode(prompt + ids)`` where
    ``certain(prompt)`` is the part of the prompt's text that no later id can change (all of it, unless the prompt
    ends inside a character). So a leading space is kept where the prompt has text and dropped where the
    tokenizer drops it, and special tokens add nothing.

    Work and memory per id are constant, but for sentencepiece's runs of raw bytes: such a run is one unit, held
    until it ends.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._inner: _ByteLevel | _SentencePiece
        self._inner = _ByteLevel() if tokenizer.rules.byte_level else _SentencePiece(tokenizer)
        self._inner.prime(tokenizer, prompt_ids)

    def push(self, ids: Iterable[int]) -> str:
        """Text that became certain with these ids."""
        token = self._tokenizer.token
        return self._inner.push([piece for piece in map(token, ids) if piece is not None])

    def flush(self) -> str:
        """The rest, when nothing follows: a broken character becomes U+FFFD. Call once, last."""
        return self._inner.flush()


class _ByteLevel:
    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def prime(self, tokenizer: Tokenizer, prompt_ids: Sequence[int]) -> None:
        tail = b""
        for token_id in reversed(prompt_ids):
            if len(tail) >= _UTF8_TAIL:
                break
            tail = byte_level_bytes(tokenizer.token(token_id) or "") + tail
        self._utf8.decode(tail)

    def push(self, pieces: list[str]) -> str:
        return self._utf8.decode(b"".join(map(byte_level_bytes, pieces)))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class _SentencePiece:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._rules = tokenizer.rules
        self._run = bytearray()
        self._first = True
        self._strip = self._rules.strip_left

    def prime(self, tokenizer: Tokenizer, prompt_ids: Sequence[int]) -> None:
        # Only the start of the text (what is stripped there) and an open run of raw bytes reach into the output.
        pieces = [piece for piece in map(tokenizer.token, prompt_ids) if piece is not None]
        self.push(pieces)

    def push(self, pieces: list[str]) -> str:
        out: list[str] = []
        for piece in pieces:
            byte = self._rules.raw_byte(piece)
            if byte is not None:
                self._run.append(byte)
            else:
                out.append(self._close_run())
                out.append(self._rules.text(piece, self._first))
            self._first = False
        return self._stripped("".join(out))

    def flush(self) -> str:
        return self._stripped(self._close_run())

    def _close_run(self) -> str:
        if not self._run:
            return ""
        try:
            text = self._run.decode()
        except UnicodeDecodeError:
            text = "\ufffd" * len(self._run)
        self._run.clear()
        return text

    def _stripped(self, text: str) -> str:
        while self._strip and text:
            if not text.startswith(self._rules.strip_char):
                self._strip = 0
            else:
                text = text[1:]
                self._strip -= 1
        return text


__all__ = ["Detokenizer"]
