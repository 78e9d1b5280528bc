"""Readers as a process of their own: ``python load_clients.py`` with a ``Job`` in JSON on its standard input.

``streams`` are read as fast as they come. Each message is noted with the moment of its arrival and parsed when all is
over, so that what is measured is the servers more than this program. ``stalled`` ones read one message, and on only at
the end, when the rest of the input closes: half of them gRPC, half server-sent events.
"""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import grpc
import grpc.aio
from load_wire import Stream, read_all

from lorry.api.status import error_from_rpc
from lorry.api.v1 import generate_pb2 as pb

METHOD = "/lorry.api.v1.GenerateService/GenerateStream"
CONNECTION_STREAMS = 25
"""Of one connection, as of one client's process."""


@dataclass(frozen=True, slots=True)
class Request:
    request_id: str
    key: str
    model: str
    at: float
    """Seconds after the job's begin."""


@dataclass(frozen=True, slots=True)
class Job:
    """``begin``: of CLOCK_MONOTONIC. ``seed`` and ``tokens``: of every request. ``stalled``: they stop reading."""

    address: str
    http: tuple[str, int]
    begin: float
    seed: int
    tokens: int
    stalled: bool
    bare: bool
    """Streams are read by ``load_wire``, not by grpc's client."""
    requests: Sequence[Request]

    @classmethod
    def read(cls, text: str) -> Job:
        found = json.loads(text)
        return cls(**{**found, "requests": [Request(**one) for one in found["requests"]]})


@dataclass(slots=True)
class Reply:
    """``first_ms``: from when the engine handed over the first token until it was here; ``later_ms`` the same of every
    other token. ``wrong``: whatever the stream did that it may not. ``error``: the status' reason."""

    request_id: str
    first_ms: float | None = None
    later_ms: list[float] = field(default_factory=list)
    deltas: int = 0
    tokens: int = 0
    sha256: str = ""
    ledger_id: str = ""
    ended: bool = False
    error: str = ""
    wrong: str = ""

    def take(self, at: float, raw: bytes) -> None:
        """The next message, and when it came."""
        message = pb.GenerateStreamResponse.FromString(raw)
        if self.ended:
            self.wrong = "a message after the end"
        elif message.HasField("delta"):
            self.deltas += 1
            for part in message.delta.text.split(";")[:-1]:
                self._token(at, part)
        elif message.HasField("end"):
            self.ended, self.ledger_id = True, message.end.usage.ledger_id
            if message.end.usage.output_tokens != self.tokens:
                self.wrong = f"{self.tokens} tokens came, the end says {message.end.usage.output_tokens}"
            if message.end.model.sha256 != self.sha256:
                self.wrong = "the end states another version than the start"
        elif self.deltas:
            self.wrong = "a start after the first token"
        else:
            self.sha256 = message.start.model.sha256

    def _token(self, at: float, part: str) -> None:
        index, _, stamp = part.partition(":")
        if int(index) != self.tokens:
            self.wrong = f"token {index} came in place of {self.tokens}"
        added = 1e3 * at - int(stamp.rstrip(".")) / 1e3
        if self.tokens == 0:
            self.first_ms = added
        else:
            self.later_ms.append(round(added, 3))
        self.tokens += 1


def message_of(job: Job, one: Request) -> pb.GenerateRequest:
    made = pb.GenerateRequest(request_id=one.request_id, model=one.model, prompt="the lorry")
    made.sampling.seed = job.seed
    made.stopping.max_tokens = job.tokens
    return made


def channels(job: Job) -> list[Any]:
    """Callables for GenerateStream that answer bytes, one for each connection."""
    options: list[tuple[str, Any]] = [("grpc.use_local_subchannel_pool", 1)]
    if job.stalled:  # small windows: it stalls soon, as a client with little memory does
        options += [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1 << 16)]
    count = -(-len(job.requests) // CONNECTION_STREAMS)
    serializer = pb.GenerateRequest.SerializeToString
    made = (grpc.aio.insecure_channel(job.address, options=options) for _ in range(count))
    return [channel.unary_stream(METHOD, request_serializer=serializer, response_deserializer=None) for channel in made]


async def follow(job: Job, one: Request, open_stream: Any, goes_on: asyncio.Event) -> Reply:
    """A gRPC stream to its end. ``goes_on``: from when it reads more than its first message."""
    reply, came = Reply(one.request_id), list[tuple[float, bytes]]()
    await asyncio.sleep(job.begin + one.at - time.monotonic())
    call = open_stream(message_of(job, one), metadata=(("authorization", f"Bearer {one.key}"),))
    try:
        while (raw := await call.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]  # the stubs lack it
            came.append((time.monotonic(), raw))
            if not goes_on.is_set():
                await goes_on.wait()
    except grpc.RpcError as error:
        reply.error = error_from_rpc(error).reason
    for at, raw in came:
        reply.take(at, raw)
    return reply


def stall_on_http(job: Job, one: Request) -> socket.socket:
    """A request for server-sent events of which the first bytes have been read."""
    body = {"model": one.model, "prompt": "the lorry", "seed": job.seed, "max_tokens": job.tokens, "stream": True}
    raw = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: lorry\r\nauthorization: Bearer {one.key}\r\n"
        f"x-request-id: {one.request_id}\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n"
    )
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1400)  # or the system would keep megabytes, as on no network
    made.settimeout(60.0)
    made.connect(tuple(job.http))
    made.sendall(head.encode() + raw)
    found = made.recv(256)
    if not found.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"{one.request_id}: {found[:200]!r}")
    return made


def read_rest(one: Request, made: socket.socket) -> Reply:
    """What is still to be had: a broken connection, and no end of the stream."""
    reply, last = Reply(one.request_id), b""
    try:
        with made:
            while found := made.recv(1 << 16):
                last = (last + found)[-64:]
    except ConnectionResetError:
        reply.error = "RESET"
    reply.ended = b"[DONE]" in last
    return reply


def read_bare(job: Job) -> list[Reply]:
    streams = [
        Stream(
            [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", METHOD),
                (":authority", "lorry"),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
                ("authorization", f"Bearer {one.key}"),
            ],
            message_of(job, one).SerializeToString(),
            job.begin + one.at,
        )
        for one in job.requests
    ]
    read_all(job.address, streams, -(-len(streams) // CONNECTION_STREAMS))
    replies = []
    for one, stream in zip(job.requests, streams, strict=True):
        reply = Reply(one.request_id, error="" if stream.status == 0 else f"status {stream.status}: {stream.told}")
        for at, raw in stream.came:
            reply.take(at, raw)
        replies.append(reply)
    return replies


async def run(job: Job) -> list[Reply]:
    goes_on = asyncio.Event()
    if job.bare and not job.stalled:
        return read_bare(job)
    opened = channels(job)
    if not job.stalled:
        goes_on.set()
        works = [follow(job, one, opened[n % len(opened)], goes_on) for n, one in enumerate(job.requests)]
        return list(await asyncio.gather(*works))
    half = len(job.requests) // 2
    over_http = job.requests[half:]
    replies = [
        asyncio.create_task(follow(job, one, opened[n % len(opened)], goes_on))
        for n, one in enumerate(job.requests[:half])
    ]
    await asyncio.sleep(job.begin - time.monotonic())
    sockets = await asyncio.gather(*(asyncio.to_thread(stall_on_http, job, one) for one in over_http))
    await asyncio.to_thread(sys.stdin.read)
    goes_on.set()
    rest = await asyncio.gather(*(asyncio.to_thread(read_rest, *pair) for pair in zip(over_http, sockets, strict=True)))
    return [*await asyncio.gather(*replies), *rest]


if __name__ == "__main__":
    gc.disable()  # of a program that keeps what came until it ends
    replies = asyncio.run(run(Job.read(sys.stdin.readline())))
    print(json.dumps({"cpu_s": time.process_time(), "replies": [asdict(one) for one in replies]}), flush=True)
