"""A stub engine with a clock, as a process of its own: ``python load_engine.py SOCKET BASE_DIR PORT``.

It serves the internal transport on a Unix socket, as an engine does, and the public GenerateStream on a TCP port with
nothing between: what the gateway's figures are held against. What a request is to get is in its seed (``Pace``). Each
token's text is ``{index}:{stamp};``, the stamp being CLOCK_MONOTONIC in microseconds when the engine handed it over.

Says ``ready`` when it serves; answers each line on its standard input with its figures in JSON; ends when that closes.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
from array import array
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from lorry.adapters.manifest import AdapterRef
from lorry.api.v1 import generate_pb2 as pb
from lorry.engine.contract import (
    ChoiceEnd,
    EngineClient,
    EngineEvent,
    EngineInfo,
    EngineRequest,
    Finished,
    Forgotten,
    Provenance,
    Started,
    Tokens,
    Whereabouts,
)
from lorry.engine.metrics import EngineMetrics
from lorry.engine.transport_server import serve_engine
from lorry.engine.views import MemoryView, QueueView, VersionCopies
from lorry.ids import AdapterDigest, AdapterKey, AdapterScope, BaseDigest
from lorry.loops import run, settle
from lorry.text import Tokenizer

BASE_DIGEST = BaseDigest("b" * 64)
CONTEXT_TOKENS = 16_384
_BITS = 16


@dataclass(frozen=True, slots=True)
class Pace:
    """``rate`` tokens a second, each with ``padding`` bytes of text. Tokens that are due within one step of ``step_ms``
    are handed over together, at its end."""

    rate: int
    padding: int = 0
    step_ms: int = 5

    @property
    def seed(self) -> int:
        return (self.padding << _BITS | self.step_ms) << _BITS | self.rate

    @classmethod
    def of(cls, seed: int) -> Pace:
        most = (1 << _BITS) - 1
        return cls(seed & most, seed >> 2 * _BITS, seed >> _BITS & most)


class Steps:
    """The ends of an engine's steps: all that wait for one go on together."""

    def __init__(self) -> None:
        self._ends: dict[float, asyncio.Event] = {}

    async def end(self, due: float, step_s: float) -> float:
        """Returns at the first end of a step that is not before ``due``, with its time."""
        at = math.ceil(due / step_s) * step_s
        if at <= time.monotonic():
            return at
        event = self._ends.get(at)
        if event is None:
            event = self._ends[at] = asyncio.Event()
            asyncio.get_running_loop().call_at(at, lambda: self._ends.pop(at).set())
        await event.wait()
        return at


class PacedEngine(EngineClient):
    """Answers everything, whichever adapter: the contract with a clock and no model."""

    def __init__(self, tokenizer: Tokenizer, base_dir: Path) -> None:
        self._info = EngineInfo(
            BASE_DIGEST,
            tokenizer.sha256,
            "float32",
            "stub",
            "stub-0",
            CONTEXT_TOKENS,
            tokenizer.vocabulary,
            1024,
            base_dir,
            64,
            1 << 20,
        )
        self._live = 0
        self._steps = Steps()
        self.late = array("d")
        """Seconds by which tokens were handed over after they were due."""

    async def info(self) -> EngineInfo:
        return self._info

    async def state(self) -> dict[str, Any]:
        return {"live": self._live}

    async def generate(self, request: EngineRequest) -> AsyncIterator[EngineEvent]:
        adapter = request.adapter.digest if request.adapter else None
        self._live += 1
        try:
            async for event in self.events(adapter, request.sampling.seed, request.stopping.max_tokens):
                yield event
        finally:
            self._live -= 1

    async def events(self, adapter: AdapterDigest | None, seed: int, count: int) -> AsyncIterator[EngineEvent]:
        info, pace = self._info, Pace.of(seed)
        stated = Provenance(adapter, info.base, info.tokenizer_sha256, info.dtype, info.engine_build, info.replica)
        padding, begun = "." * pace.padding, time.monotonic()
        first = begun
        for index in range(count):
            due = await self._steps.end(begun + index / pace.rate, pace.step_ms / 1e3)
            if index == 0:
                first = due
                yield Started(stated, "device" if adapter else "base", 0.0, 0.0)
            now = time.monotonic()
            self.late.append(now - due)
            yield Tokens((index % info.vocabulary,), f"{index}:{int(now * 1e6)}{padding};")
        seconds = time.monotonic() - begun
        end = ChoiceEnd("length", "", None, count)
        yield Finished(stated, (end,), 1, count, 0, 0.0, first - begun, seconds, 1, 1)

    async def whereabouts(self, adapter: AdapterKey) -> Whereabouts:
        return Whereabouts(True, True, True, 0)

    async def preload(self, ref: AdapterRef, wait_s: float) -> None:
        """Everything is there."""

    async def evict(self, adapter: AdapterKey) -> bool:
        return False

    async def forget(self, adapter: AdapterKey) -> Forgotten:
        return Forgotten(0, 0, 0, 0)

    async def metrics(self) -> EngineMetrics:
        return EngineMetrics()

    async def memory(self) -> MemoryView:
        return MemoryView()

    async def copies(self, scopes: Collection[AdapterScope]) -> tuple[VersionCopies, ...]:
        return ()

    async def queue(self) -> QueueView:
        return QueueView()

    async def close(self) -> None:
        """Nothing is held."""


def direct_service(engine: PacedEngine) -> Any:
    """GenerateStream with the least that a server of streams does: no key, no name, no check, no bill."""

    async def stream(request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateStreamResponse]:
        async for event in engine.events(None, request.sampling.seed, request.stopping.max_tokens):
            if isinstance(event, Tokens):
                yield pb.GenerateStreamResponse(delta=pb.Delta(text=event.text))
            elif isinstance(event, Started):
                yield pb.GenerateStreamResponse(start=pb.StreamStart(request_id=request.request_id))
            else:
                yield pb.GenerateStreamResponse(end=pb.StreamEnd(usage=pb.Usage(output_tokens=event.output_tokens)))

    method: Any = grpc.unary_stream_rpc_method_handler(
        stream,
        request_deserializer=pb.GenerateRequest.FromString,
        response_serializer=pb.GenerateStreamResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler("lorry.api.v1.GenerateService", {"GenerateStream": method})


async def figures(engine: PacedEngine) -> dict[str, Any]:
    late, engine.late = sorted(engine.late), array("d")
    return {
        **await engine.state(),
        "tokens": len(late),
        "late_ms_p99": 1e3 * late[int(0.99 * len(late))] if late else 0.0,
        "late_ms_max": 1e3 * late[-1] if late else 0.0,
    }


async def main(socket: str, base_dir: Path, port: int) -> None:
    engine = PacedEngine(Tokenizer.load(base_dir), base_dir)
    server = await serve_engine(engine, f"unix:{socket}")
    direct = grpc.aio.server()
    direct.add_generic_rpc_handlers((direct_service(engine),))
    direct.add_insecure_port(f"127.0.0.1:{port}")
    await direct.start()
    settle()
    print(json.dumps("ready"), flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(await figures(engine)), flush=True)
    await direct.stop(None)
    await server.stop()


if __name__ == "__main__":
    run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
