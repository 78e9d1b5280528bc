"""Answers with thousands of logprobs: whoever asks for them holds up nobody else's stream."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from lorry.api.v1 import generate_pb2 as pb
from lorry.gateway import wire
from lorry.gateway.generations import ASIDE
from tests.integration.gateway.world import World, read, request, world


@pytest.fixture
async def here() -> AsyncIterator[World]:
    async with world() as made:
        yield made


def large() -> pb.GenerateRequest:
    """Of its prompt and of its output there are more than are written on the loop."""
    made = request(
        sampling=pb.SamplingParams(temperature=0, n=4),
        output=pb.OutputParams(top_logprobs=2, prompt_logprobs=2),
        token_ids=pb.TokenIds(ids=[7] * (ASIDE + 2)),
    )
    made.stopping.max_tokens = ASIDE // 2
    made.stopping.ignore_eos = True
    return made


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[bool]]:
    """Of each message that is written: whether by the thread that serves."""
    found: dict[str, list[bool]] = {"start": [], "response": []}

    def watched(name: str, write: Callable[..., Any]) -> Callable[..., Any]:
        def call(*parts: Any) -> Any:
            found[name].append(threading.current_thread() is threading.main_thread())
            return write(*parts)

        return call

    for name in found:
        monkeypatch.setattr(wire, name, watched(name, getattr(wire, name)))
    return found


async def test_they_are_written_beside_the_loop(here: World, threads: dict[str, list[bool]]) -> None:
    whole = await here.stub.Generate(large(), metadata=here.metadata())
    messages, error = await read(here.call(large()))
    assert error is None
    assert threads == {"start": [False], "response": [False]}
    assert list(messages[0].start.prompt_logprobs) == list(whole.prompt_logprobs)
    assert len(whole.prompt_logprobs) == ASIDE + 1
    for choice in whole.choices:
        sent = [one for m in messages if m.delta.choice == choice.index for one in m.delta.logprobs]
        assert sent == list(choice.logprobs)


async def test_others_are_written_at_once(here: World, threads: dict[str, list[bool]]) -> None:
    small = request(output=pb.OutputParams(top_logprobs=2, prompt_logprobs=2))
    await here.stub.Generate(small, metadata=here.metadata())
    await read(here.call(small))
    assert threads == {"start": [True], "response": [True]}
