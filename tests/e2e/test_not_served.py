"""A field of the proto that is not served yet answers UNIMPLEMENTED by its name. It is never ignored."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import grpc
import pytest

from lorry.api.v1 import generate_pb2 as pb
from tests.e2e.world import BASE, World, ask

pytestmark = pytest.mark.asyncio(loop_scope="package")

PROTO = Path(__file__).resolve().parents[2] / "proto" / "lorry" / "api" / "v1" / "generate.proto"
_FIELD = re.compile(r"^(?:optional |repeated )?[\w.<>, ]+? (\w+) = \d+;")


def marked_fields(text: str) -> set[str]:
    """`Message.field` of every field whose comment says "not served yet"; a oneof's comment counts for its fields."""
    found: set[str] = set()
    scopes: list[tuple[str, bool]] = []
    comment = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("//"):
            comment += line.removeprefix("//") + " "
            continue
        marked = "not served yet" in comment.lower()
        comment = ""
        if opened := re.match(r"(message|oneof|enum|service) (\w+) \{", line):
            scopes.append((opened[2], marked and opened[1] == "oneof"))
        elif line == "}" and scopes:
            scopes.pop()
        elif (field := _FIELD.match(line)) and scopes and (marked or scopes[-1][1]):
            found.add(f"{scopes[0][0]}.{field[1]}")
    return found


VALUES: dict[str, tuple[dict[str, Any], ...]] = {
    "GenerateRequest.json_schema": ({"json_schema": '{"type": "object"}'}, {"json_schema": ""}),
    "GenerateRequest.regex": ({"regex": "a+"}, {"regex": ""}),
    "GenerateRequest.ebnf": ({"ebnf": 'root ::= "a"'},),
    "GenerateRequest.choices": ({"choices": pb.Choices(choices=["a", "b"])}, {"choices": pb.Choices()}),
    "GenerateRequest.json_object": ({"json_object": True},),
    "GenerateRequest.priority": ({"priority": 5}, {"priority": -100}),
    "SamplingParams.typical_p": ({"sampling": pb.SamplingParams(typical_p=0.5)},),
    "OutputParams.progress": ({"output": pb.OutputParams(progress=True)},),
}


async def test_every_field_that_the_proto_marks_is_tried() -> None:
    assert marked_fields(PROTO.read_text()) == set(VALUES)


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        pytest.param(name, value, id=f"{name}-{at}")
        for name, values in VALUES.items()
        for at, value in enumerate(values)
    ],
)
async def test_unimplemented_by_its_name(world: World, field: str, fields: dict[str, Any]) -> None:
    await world.refused(
        world.canary.key,
        ask(world.canary_tracer.adapter, **fields),
        grpc.StatusCode.UNIMPLEMENTED,
        "NOT_SERVED_YET",
        field.split(".")[1],
    )


async def test_several_are_all_named(world: World) -> None:
    request = ask(BASE, priority=1, json_object=False, sampling=pb.SamplingParams(typical_p=1.0))
    answer = await world.stream(world.canary.key, request)
    assert answer.code is grpc.StatusCode.UNIMPLEMENTED
    assert answer.error is not None
    assert all(name in answer.error.message for name in ("priority", "json_object", "typical_p"))


async def test_a_field_that_is_not_served_does_not_open_a_closed_door(world: World) -> None:
    """A key that is bad, and a model that is another's, are told first or alone: nothing leaks through this error."""
    stranger = await world.tenant()
    await world.settle()
    request = ask(world.canary_tracer.adapter, priority=1)
    unknown = ask(f"{world.canary_tracer.adapter}-x", priority=1)
    assert (await world.stream("lorry_nonsense", request)).code is grpc.StatusCode.UNAUTHENTICATED
    foreign, missing = await world.stream(stranger.key, request), await world.stream(stranger.key, unknown)
    assert foreign.code is missing.code
    assert foreign.messages == missing.messages == []
