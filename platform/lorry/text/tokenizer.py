"""A base model's text side: ids from text and chats, text from ids, and the digest that names all of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import tokenizers

from lorry.errors import InvalidRequest, UnsupportedBase
from lorry.text.chat import ChatTemplate
from lorry.text.pieces import PieceRules, read_rules

_SPECIALS = ("bos_token", "eos_token", "unk_token", "pad_token")
_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def tokenizer_digest(base_dir: Path) -> str:
    """SHA-256 (64 hex digits) over every file that decides text behaviour; absent files count as absent."""
    digest = hashlib.sha256(b"lorry-tokenizer-v1\n")
    for name in _FILES:
        path = base_dir / name
        if path.is_file():
            content = path.read_bytes()
            digest.update(b"%b %d\n" % (name.encode(), len(content)))
            digest.update(content)
    return digest.hexdigest()


def _special_text(value: Any) -> str:
    """tokenizer_config.json writes a special token as a string or as an object with ``content``."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _template_source(base_dir: Path, config: Mapping[str, Any]) -> str | None:
    path = base_dir / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    source = config.get("chat_template")
    if isinstance(source, list):
        named = {entry["name"]: entry["template"] for entry in source}
        source = named.get("default")
    return source if isinstance(source, str) else None


class Tokenizer:
    """Immutable once loaded; safe to use from several threads."""

    def __init__(
        self, backend: tokenizers.Tokenizer, sha256: str, template: ChatTemplate | None, rules: PieceRules
    ) -> None:
        self._backend = backend
        self._template = template
        self._specials = frozenset(
            token.content for token in backend.get_added_tokens_decoder().values() if token.special
        )
        self.sha256 = sha256
        self.rules = rules
        self.vocabulary = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        """Ids are 0 <= id < vocabulary."""

    @classmethod
    def load(cls, base_dir: Path, now: Callable[[], datetime] = datetime.now) -> Tokenizer:
        """Reads ``tokenizer.json``, ``tokenizer_config.json`` and ``chat_template.jinja`` of a Hugging Face folder.

        Truncation and padding set in the file are switched off. ``now`` serves templates that print the date.
        Raises UnsupportedBase, naming the file, where one is missing, broken or not served.
        """
        path = base_dir / "tokenizer.json"
        if not path.is_file():
            raise UnsupportedBase("tokenizer.json is missing; only fast tokenizers are served, so convert this one")
        raw = path.read_text(encoding="utf-8")
        try:
            backend = tokenizers.Tokenizer.from_str(raw)
            rules = read_rules(json.loads(raw).get("decoder"))
        except UnsupportedBase:
            raise
        except Exception as error:  # the library raises bare Exception for every kind of fault
            raise UnsupportedBase(f"tokenizer.json cannot be read: {error}") from error
        backend.no_truncation()
        backend.no_padding()
        config_path = base_dir / "tokenizer_config.json"
        config = json.loads(config_path.read_text(encoding="utf-8")) if config_path.is_file() else {}
        source = _template_source(base_dir, config)
        specials = {name: _special_text(config.get(name)) for name in _SPECIALS}
        template = ChatTemplate(source, specials, now) if source is not None else None
        return cls(backend, tokenizer_digest(base_dir), template, rules)

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

    def token_id(self, token: str) -> int | None:
        """The id with this spelling (``<|im_end|>``), or None."""
        return self._backend.token_to_id(token)


__all__ = ["Tokenizer", "tokenizer_digest"]
