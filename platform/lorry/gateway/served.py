"""Fields of the final contract that this release does not serve: set, they are refused by name, never ignored."""

from __future__ import annotations

from lorry.api.v1 import generate_pb2 as pb
from lorry.errors import NotServedYet

NOT_SERVED = (
    "json_schema",
    "regex",
    "ebnf",
    "choices",
    "json_object",
    "priority",
    "sampling.typical_p",
    "output.progress",
)
"""Paths in GenerateRequest; each is marked "Not served yet" in generate.proto."""


def check_served(request: pb.GenerateRequest) -> None:
    """Raises NotServedYet naming every such field that is set, be it to its default."""
    found = [path for path in NOT_SERVED if _is_set(request, path)]
    if found:
        names = ", ".join(found)
        raise NotServedYet(f"{names}: not served by this release; leave it unset", metadata={"fields": names})


def _is_set(message: pb.GenerateRequest, path: str) -> bool:
    """Set fields are those that ``ListFields`` lists: present optionals and oneof members, non-empty others."""
    head, _, tail = path.partition(".")
    for descriptor, value in message.ListFields():
        if descriptor.name == head:
            return _is_set(value, tail) if tail else True
    return False


__all__ = ["NOT_SERVED", "check_served"]
