"""OpenAI's fields that are not served: refused by name, but for values that ask for nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lorry.errors import NotServedYet

Harmless = Callable[[Any], bool]


def _only(*values: Any) -> Harmless:
    return lambda value: any(type(value) is type(one) and value == one for one in values)


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _never(value: Any) -> bool:
    return False


_BOTH: Mapping[str, Harmless] = {
    "metadata": _only({}),
    "service_tier": _only("auto", "default"),
    # Hints that change no answer: how to route for cached prefixes, and a hash of the user for abuse reports.
    "prompt_cache_key": _text,
    "safety_identifier": _text,
}
CHAT: Mapping[str, Harmless] = {
    **_BOTH,
    "audio": _never,
    "function_call": _only("none", "auto"),
    "functions": _only([]),
    "modalities": _only(["text"]),
    "moderation": _never,
    # Of what it is about there are no calls here.
    "parallel_tool_calls": lambda value: isinstance(value, bool),
    "prediction": _never,
    "prompt_cache_options": _never,
    "prompt_cache_retention": _never,
    "reasoning_effort": _only("none"),
    "response_format": _only({"type": "text"}),
    "store": _only(False),
    "tool_choice": _only("none", "auto"),
    "tools": _only([]),
    "verbosity": _only("medium"),
    "web_search_options": _never,
}
COMPLETIONS: Mapping[str, Harmless] = {
    **_BOTH,
    "best_of": _only(1),
    "echo": _only(False),
    "suffix": _only(""),
}
"""A field that is not served -> whether a value of it says no more than leaving it out."""


def without_harmless(found: Mapping[str, Any], table: Mapping[str, Harmless]) -> dict[str, Any]:
    """The rest of the fields. Raises NotServedYet naming every field that asks for what is not served."""
    wanted = [name for name in table if found.get(name) is not None and not table[name](found[name])]
    refuse(wanted)
    return {name: value for name, value in found.items() if name not in table}


def refuse(names: list[str]) -> None:
    """Raises NotServedYet where there are any."""
    if names:
        raise not_served(names)


def not_served(names: list[str]) -> NotServedYet:
    listed = ", ".join(names)
    return NotServedYet(f"{listed}: not served by this release; leave it unset", metadata={"fields": listed})


__all__ = ["CHAT", "COMPLETIONS", "Harmless", "not_served", "refuse", "without_harmless"]
