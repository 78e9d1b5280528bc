"""The list of fields that are not served is the one that the proto tells its readers."""

from __future__ import annotations

import re
from pathlib import Path

from google.protobuf.descriptor import Descriptor

from lorry.api.v1 import generate_pb2 as pb
from lorry.gateway.served import NOT_SERVED

PROTO = Path(__file__).parents[3] / "proto" / "lorry" / "api" / "v1" / "generate.proto"
_PREFIX = {"GenerateRequest": "", "SamplingParams": "sampling.", "OutputParams": "output."}


def _marked() -> set[str]:
    """Paths of fields (and members of oneofs) whose comment says "not served yet"."""
    found: set[str] = set()
    message, oneof, comment, oneof_marked = "", False, "", False
    for line in map(str.strip, PROTO.read_text().splitlines()):
        if line.startswith("//"):
            comment += line
            continue
        if named := re.match(r"message (\w+)", line):
            message = named[1]
        elif line.startswith("oneof"):
            oneof, oneof_marked = True, "not served yet" in comment.lower()
        elif line == "}":
            oneof = False
        elif (field := re.match(r"(?:optional |repeated )?[\w.<>, ]+ (\w+) = \d+;", line)) and message in _PREFIX:
            marked = "not served yet" in comment.lower() or (oneof and oneof_marked)
            if marked:
                found.add(_PREFIX[message] + field[1])
        comment = ""
    return found


def test_list_equals_the_marks_in_the_proto() -> None:
    assert _marked() == set(NOT_SERVED)


def test_every_path_exists() -> None:
    for path in NOT_SERVED:
        descriptor: Descriptor | None = pb.GenerateRequest.DESCRIPTOR
        for name in path.split("."):
            assert descriptor is not None
            field = descriptor.fields_by_name[name]
            descriptor = field.message_type
