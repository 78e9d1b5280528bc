"""A text side: ids from text and chats, text from ids, and the digest that names all of it."""

from __future__ import annotations

import hashlib
import json
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models

from lorry.errors import InvalidRequest, UnsupportedBase
from lorry.text.chat import ChatTemplate
from lorry.text.files import TextFiles
from lorry.text.pieces import PieceRules, read_rules

_SPECIALS = ("bos_token", "eos_token", "unk_token", "pad_token")
_JSON_COST, _ID_COST, _ADDED_COST, _UNIGRAM_COST = 5, 450, 48, 360
"""Bytes in memory for a byte of tokenizer.json (merges), an id, a byte of an added token, and a byte of a token of
Unigram, whose tree has a table for each; measured on files that were made to take the most."""
_TEMPLATE_COST = 64 << 10
"""Bytes in memory of a template beside its source, about."""
_TOKEN_CHARS = 4096
"""Of the longest token: one id adds as much text at once."""


_LOCK = threading.Lock()
_LOADED: weakref.WeakValueDictionary[tuple[str, str], Tokenizer] = weakref.WeakValueDictionary()
_SAME: dict[tuple[str, str], None] = {}
"""Digests of (a base, files over it) that make no difference: adapters come with such files as a rule."""
_SAME_MAX = 4096


def tokenizer_digest(base_dir: Path, overlay: Path | None = None) -> str:
    """SHA-256 (64 hex digits) over every file that decides text behaviour; absent files count as absent.

    With ``overlay``, a version's folder: that of ``Tokenizer.load(base_dir, overlay)``, and raises as that does.
    """
    return TextFiles.of(base_dir).sha256 if overlay is None else Tokenizer.load(base_dir, overlay).sha256


def special_text(value: Any) -> str:
    """tokenizer_config.json writes a special token as a string or as an object with ``content``."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else ""


class Tokenizer:
    """Immutable once loaded; safe to use from several threads."""

    def __init__(self, files: TextFiles, now: Callable[[], datetime], under: Tokenizer | None = None) -> None:
        """See ``load``. ``under``: the base's, of a version's; what is equal is shared with it."""
        settings, source = files.settings(), files.template_source()
        self._tokenizer_sha256 = hashlib.sha256(files.tokenizer or b"").hexdigest()
        self._now = now
        self._source = source
        self._own_effect: tuple[str, dict[str, str], str | None] | None = None
        shared = under is not None and under._tokenizer_sha256 == self._tokenizer_sha256
        self._backend: tokenizers.Tokenizer
        self.rules: PieceRules
        self.vocabulary: int
        self._specials: frozenset[str]
        self.nbytes = 0
        """Host memory that it takes beside the one it shares with, about."""
        if under is not None and shared:
            self._backend, self.rules = under._backend, under.rules
            self.vocabulary, self._specials = under.vocabulary, under._specials
        else:
            self._backend, self.rules = _read_backend(files.tokenizer)
            self._specials = frozenset(
                token.content for token in self._backend.get_added_tokens_decoder().values() if token.special
            )
            ids = self._backend.get_vocab(with_added_tokens=True)
            _check_lengths(ids)
            self.vocabulary = max((*ids.values(), *_ids_around(self._backend)), default=-1) + 1
            """Ids are 0 <= id < vocabulary."""
            self.nbytes = _backend_bytes(self._backend, len(files.tokenizer or b""), ids)
        self.special_tokens = {name: special_text(settings.get(name)) for name in _SPECIALS}
        """``bos_token``, ``eos_token``, ``unk_token`` and ``pad_token`` as text; "" where there is none."""
        self._template: ChatTemplate | None = None
        if source is not None:
            self._template = ChatTemplate(source, self.special_tokens, now, compile_now=under is None)
        self.sha256 = files.sha256
        if source is not None:
            self.nbytes += _TEMPLATE_COST + len(source)

    @classmethod
    def load(
        cls, base_dir: Path, overlay: Path | None = None, *, now: Callable[[], datetime] = datetime.now
    ) -> Tokenizer:
        """Reads ``tokenizer.json``, ``tokenizer_config.json`` and ``chat_template.jinja`` of a Hugging Face folder,
        with those of a version's folder ``overlay`` over them (``lorry.text.files`` says how).

        Truncation and padding set in the file are switched off. ``now`` serves templates that print the date.
        Raises UnsupportedBase, naming the file, where one is missing, broken or not served.
        """
        files = TextFiles.of(base_dir)
        if files.tokenizer is None:
            raise UnsupportedBase("tokenizer.json is missing; only fast tokenizers are served, so convert this one")
        base = _shared(("base", files.sha256), now, lambda: cls(files, now))
        return base if overlay is None else base.with_overlay(base_dir, overlay)

    def with_overlay(self, base_dir: Path, overlay: Path) -> Tokenizer:
        """A version's, where this is the base's of ``base_dir``; this one where the version's files change nothing that
        can be told: files that were only saved anew have the base's digest. Raises as ``load``."""
        base = TextFiles.of(base_dir)
        files = base.under(overlay)
        pair = (self.sha256, files.sha256)
        if files == base or pair in _SAME:
            return self
        own = _shared(pair, self._now, lambda: Tokenizer(files, self._now, under=self))
        if own._effect() != self._effect():
            return own
        with _LOCK:
            _SAME[pair] = None
            if len(_SAME) > _SAME_MAX:
                _SAME.pop(next(iter(_SAME)))
        return self

    def encode(self, text: str, add_special: bool) -> list[int]:
        """``add_special`` adds what the tokenizer's post-processor adds (for many models: bos)."""
        return self._backend.encode(text, add_special_tokens=add_special).ids

    def render_chat(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
        """The chat as text, special tokens spelled out: encode it with ``add_special=False``.

        Raises InvalidRequest (``chat``) where the model has no template or the template refuses the messages.
        """
        if self._template is None:
            raise InvalidRequest.field("chat", "this model has no chat template; send `prompt` or `token_ids`")
        return self._template.render(messages, add_generation_prompt)

    def decode(self, ids: Sequence[int]) -> str:
        """Special tokens and unknown ids are skipped."""
        return self._backend.decode(list(ids), skip_special_tokens=True)

    def token(self, token_id: int) -> str | None:
        """The vocabulary's spelling of an id; None where it is special or unknown, which add no text."""
        token = self._backend.id_to_token(token_id)
        return None if token in self._specials else token

    def name(self, token_id: int) -> str | None:
        """The vocabulary's spelling of an id, special or not; None where it is unknown."""
        return self._backend.id_to_token(token_id)

    def token_id(self, token: str) -> int | None:
        """The id with this spelling (``<|im_end|>``), or None."""
        try:
            return self._backend.token_to_id(token)
        except UnicodeEncodeError:  # a lone surrogate: no token has one
            return None

    def _effect(self) -> tuple[str, dict[str, str], str | None]:
        """Equal for text sides that cannot be told apart, however their files are written."""
        if self._own_effect is None:
            digest = hashlib.sha256(self._backend.to_str().encode()).hexdigest()
            self._own_effect = digest, self.special_tokens, self._source
        return self._own_effect


def _shared(key: tuple[str, str], now: Callable[[], datetime], make: Callable[[], Tokenizer]) -> Tokenizer:
    """One object for equal files while somebody has it: loading takes tenths of a second, and memory."""
    if now != datetime.now:
        return make()
    with _LOCK:
        found = _LOADED.get(key)
    if found is None:
        made = make()
        with _LOCK:
            found = _LOADED.setdefault(key, made)
    return found


def _read_backend(content: bytes | None) -> tuple[tokenizers.Tokenizer, PieceRules]:
    try:
        backend = tokenizers.Tokenizer.from_str((content or b"").decode())
        # What the library understood, so that text is joined by the decoder that it would use.
        decoder = None if backend.decoder is None else json.loads(backend.decoder.__getstate__())
        rules = read_rules(decoder)
    except UnsupportedBase:
        raise
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # the library raises bare Exception for every kind of fault, or a panic of Rust
        raise UnsupportedBase(f"tokenizer.json cannot be read: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    return backend, rules


def _check_lengths(ids: Mapping[str, int]) -> None:
    longest = max(map(len, ids), default=0)
    if longest > _TOKEN_CHARS:
        raise UnsupportedBase(f"tokenizer.json has a token of {longest} characters, over {_TOKEN_CHARS}; leave it out")


def _ids_around(backend: tokenizers.Tokenizer) -> list[int]:
    """Ids that the post-processor puts around a text. It states them itself, whatever the vocabulary has."""
    found: list[int] = []
    steps = [] if backend.post_processor is None else [json.loads(backend.post_processor.__getstate__())]
    while steps:
        step = steps.pop()
        steps += step.get("processors", ())
        found += [step[side][1] for side in ("sep", "cls") if side in step]
        for token in step.get("special_tokens", {}).values():
            found += token["ids"]
    return found


def _backend_bytes(backend: tokenizers.Tokenizer, json_bytes: int, ids: Mapping[str, int]) -> int:
    """About, and rather too much."""
    added = sum(len(token.content.encode()) for token in backend.get_added_tokens_decoder().values())
    found = _JSON_COST * json_bytes + _ID_COST * len(ids) + _ADDED_COST * added
    if isinstance(backend.model, models.Unigram):
        found += _UNIGRAM_COST * sum(len(token.encode()) for token in ids)
    return found


__all__ = ["Tokenizer", "special_text", "tokenizer_digest"]
