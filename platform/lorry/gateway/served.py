"""Fields of the final contract that this release does not serve: set, they are refused by name, never ignored."""

from __future__ import annotations

from google.protobuf.message import Message

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
    set_here = _paths(request, "") | _paths(request.sampling, "sampling.") | _paths(request.output, "output.")
    found = [path for path in NOT_SERVED if path in set_here]
    if found:
        names = ", ".join(found)
        raise NotServedYet(f"{names}: not served by this release; leave it unset", metadata={"fields": names})


def _paths(message: Message, within: str) -> set[str]:
    """Set fields are those that ``ListFields`` lists: present optionals and oneof members, non-empty others."""
    return {within + descriptor.name for descriptor, _ in message.ListFields()}


__all__ = ["NOT_SERVED", "check_served"]
