"""The files that decide a text side: the base's own, or those of a version laid over them.

A version's file stands in for the base's of the same name. Which chat template holds is transformers' rule for one
folder (``chat_template.jinja`` before ``chat_template`` of tokenizer_config.json), asked of the version's files first;
where they have none the base's holds, wherever it lies. ``TextFiles`` is that outcome as one folder's files would
state it, so the digest of a version is the one of a folder that behaves the same.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lorry.errors import UnsupportedBase

TOKENIZER = "tokenizer.json"
CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
GENERATION = "generation_config.json"
LIMITS: Mapping[str, int] = {TOKENIZER: 64 << 20, CONFIG: 2 << 20, TEMPLATE: 128 << 10, GENERATION: 256 << 10}
"""Most bytes of each file that a version may bring. All of them together are a version's text files."""


def read_bounded(folder: Path, name: str) -> bytes | None:
    """A regular file of at most ``LIMITS[name]`` bytes; None where there is none. Raises UnsupportedBase naming it."""
    path = folder / name
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnsupportedBase(f"{name} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        raise UnsupportedBase(f"{name} is not a plain file; put the file itself there")
    if found.st_size > LIMITS[name]:
        raise UnsupportedBase(f"{name} has {found.st_size} bytes, over {LIMITS[name]}; use a smaller one")
    with path.open("rb") as handle:
        content = handle.read(LIMITS[name] + 1)
    if len(content) > LIMITS[name]:
        raise UnsupportedBase(f"{name} has more than {LIMITS[name]} bytes; use a smaller one")
    return content


def parse_object(name: str, content: bytes) -> dict[str, Any]:
    """A JSON object. Raises UnsupportedBase naming the file."""
    try:
        found = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise UnsupportedBase(f"{name} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise UnsupportedBase(f"{name} is no JSON object; save it again with save_pretrained")
    return found


def embedded_template(config: Mapping[str, Any]) -> str | None:
    """``chat_template`` of tokenizer_config.json: text, or a list of named ones of which ``default`` counts."""
    source = config.get("chat_template")
    if isinstance(source, list):
        named = [entry for entry in source if isinstance(entry, dict) and entry.get("name") == "default"]
        source = named[-1].get("template") if named else None
    return source if isinstance(source, str) else None


@dataclass(frozen=True, slots=True)
class TextFiles:
    """``template`` is chat_template.jinja; None: what ``config`` has. ``tokenizer`` None: no folder to serve from."""

    tokenizer: bytes | None
    config: bytes | None
    template: bytes | None

    @classmethod
    def of(cls, folder: Path) -> TextFiles:
        """One folder's own."""
        return cls(*(_content(folder / name) for name in (TOKENIZER, CONFIG, TEMPLATE)))

    def under(self, overlay: Path) -> TextFiles:
        """These with a version's over them. Raises UnsupportedBase naming the version's file that cannot be used."""
        tokenizer, config, template = (read_bounded(overlay, name) for name in (TOKENIZER, CONFIG, TEMPLATE))
        embedded = None if config is None else embedded_template(parse_object(CONFIG, config))
        if embedded is not None and len(embedded) > LIMITS[TEMPLATE]:
            raise UnsupportedBase(f"{CONFIG} chat_template: {len(embedded)} characters, over {LIMITS[TEMPLATE]}")
        if template is None and embedded is None:
            template = self.template
            if template is None and config is not None:
                source = embedded_template(self.settings())
                template = None if source is None else source.encode()
        return TextFiles(
            self.tokenizer if tokenizer is None else tokenizer, self.config if config is None else config, template
        )

    def settings(self) -> dict[str, Any]:
        """``config`` parsed; empty where there is none."""
        return {} if self.config is None else parse_object(CONFIG, self.config)

    def template_source(self) -> str | None:
        """The chat template that holds. Raises UnsupportedBase where it is no UTF-8."""
        if self.template is None:
            return embedded_template(self.settings())
        try:
            return self.template.decode()
        except UnicodeDecodeError as error:
            raise UnsupportedBase(f"{TEMPLATE} cannot be read: {error}") from error

    @property
    def sha256(self) -> str:
        """64 hex digits over every file; absent files count as absent."""
        digest = hashlib.sha256(b"lorry-tokenizer-v1\n")
        for name, content in ((TOKENIZER, self.tokenizer), (CONFIG, self.config), (TEMPLATE, self.template)):
            if content is not None:
                digest.update(b"%b %d\n" % (name.encode(), len(content)))
                digest.update(content)
        return digest.hexdigest()


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


__all__ = [
    "CONFIG",
    "GENERATION",
    "LIMITS",
    "TEMPLATE",
    "TOKENIZER",
    "TextFiles",
    "embedded_template",
    "parse_object",
    "read_bounded",
]
