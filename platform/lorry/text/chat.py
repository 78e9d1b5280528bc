"""Chat templates, rendered the way transformers renders them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lorry.errors import InvalidRequest, UnsupportedBase


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.exceptions.TemplateError(message)


def _tojson(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


class ChatTemplate:
    """One compiled template. The sandbox keeps it from Python's insides; it sees messages and special tokens."""

    def __init__(self, source: str, specials: Mapping[str, str], now: Callable[[], datetime] = datetime.now) -> None:
        """``specials``: bos_token, eos_token and the like, as text. Raises UnsupportedBase for a broken template."""
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda layout: now().strftime(layout)
        try:
            self._template = environment.from_string(source)
        except jinja2.exceptions.TemplateError as error:
            raise UnsupportedBase(f"the chat template cannot be compiled: {error}") from error
        self._specials = dict(specials)

    def render(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> str:
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self._specials,
            )
        except (jinja2.exceptions.TemplateError, TypeError) as error:
            raise InvalidRequest.field("chat.messages", f"the model's chat template refuses them: {error}") from error


__all__ = ["ChatTemplate"]
