"""Chat templates, rendered the way transformers renders them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lorry.errors import InvalidRequest, UnsupportedBase

_BROKEN = (jinja2.exceptions.TemplateError, ValueError, TypeError, ArithmeticError, RecursionError, SyntaxError)
"""What compiling a template may raise: jinja's own, and Python's for literals and nesting beyond its limits."""
_REFUSES = (*_BROKEN, LookupError, AttributeError)
"""What rendering one may raise, beside memory and time: a template is a program."""
_ELSEWHERE: tuple[type[nodes.Stmt], ...] = (nodes.Include, nodes.Extends, nodes.Import, nodes.FromImport)
_SAID_CHARS = 500
"""Of what a template gives as its reason, which it can make as long as it likes."""


class _Generation(Extension):
    """``{% generation %}`` marks an assistant's part for training. It adds nothing to the text."""

    tags = {"generation"}  # noqa: RUF012  jinja reads it off the class

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.exceptions.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda layout: now().strftime(layout)
    return environment


def check_template(source: str) -> None:
    """Reads a template without compiling it: compiling one already runs what is constant in it.

    Raises UnsupportedBase for one that jinja does not understand, or that uses a filter, test or template which is not
    there.
    """
    environment = _environment(datetime.now)
    try:
        tree = environment.parse(source)
        filters = {node.name for node in tree.find_all(nodes.Filter)} - environment.filters.keys()
        tests = {node.name for node in tree.find_all(nodes.Test)} - environment.tests.keys()
        elsewhere = next(tree.find_all(_ELSEWHERE), None)
    except _BROKEN as error:
        raise UnsupportedBase(f"the chat template cannot be compiled: {_said(error)}") from error
    if elsewhere is not None:
        what = type(elsewhere).__name__.lower()
        raise UnsupportedBase(
            f"the chat template cannot be compiled: line {elsewhere.lineno} has {what}, and there is no other "
            "template; write it as one"
        )
    for name in sorted(filters | tests):
        raise UnsupportedBase(
            f"the chat template cannot be compiled: no filter or test {name!r} is served in templates"
        )


class ChatTemplate:
    """One template. The sandbox keeps it from Python's insides; it sees messages and special tokens.

    Nothing bounds its time and memory: one that a tenant brought is rendered in a process of its own
    (``lorry.text.worker``), which is why it is compiled no earlier than it is rendered first.
    """

    def __init__(
        self,
        source: str,
        specials: Mapping[str, str],
        now: Callable[[], datetime] = datetime.now,
        *,
        compile_now: bool = True,
    ) -> None:
        """``specials``: bos_token, eos_token and the like, as text. Raises UnsupportedBase for a broken template."""
        self._source = source
        self._now = now
        self._specials = dict(specials)
        self._template: jinja2.Template | None = None
        if compile_now:
            self._template = self._compiled()
        else:
            check_template(source)

    def render(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> str:
        """Raises InvalidRequest (``chat.messages``) where it refuses them or fails over them."""
        try:
            template = self._template or self._compiled()
        except UnsupportedBase as error:
            raise InvalidRequest.field("chat", str(error)) from error
        self._template = template
        try:
            return template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self._specials,
            )
        except _REFUSES as error:
            raise InvalidRequest.field(
                "chat.messages", f"the model's chat template refuses them: {_said(error)}"
            ) from error

    def _compiled(self) -> jinja2.Template:
        try:
            return _environment(self._now).from_string(self._source)
        except _BROKEN as error:
            raise UnsupportedBase(f"the chat template cannot be compiled: {_said(error)}") from error


def _said(error: Exception) -> str:
    text = str(error)
    return text if len(text) <= _SAID_CHARS else f"{text[:_SAID_CHARS]}..."


__all__ = ["ChatTemplate", "check_template"]
