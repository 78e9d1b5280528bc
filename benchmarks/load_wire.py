"""gRPC streams read from bare sockets, for a load generator on the machine that it loads.

grpc's own client costs about as much processor time for a message as a gateway does; this one a tenth of it. It speaks
as much of HTTP/2 as it needs: windows that are never used up, an empty header table (so that headers come as plain
text), answers to PING and SETTINGS. It looks at its sockets every 2 ms, as waking up for each message would cost the
sender too, on one machine; what has come is noted with the moment of that look, and is read afterwards.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
LOOK_S = 0.002
_WINDOW = (1 << 31) - 1
_HEAD = struct.Struct(">HBBBI")
"""Length in two parts, kind, flags, stream."""


@dataclass(slots=True)
class Stream:
    """``at``: when it begins, of CLOCK_MONOTONIC. ``came``: whole messages and when the last byte of each was here.
    ``status`` and what was ``told`` with it: gRPC's, None where the stream ended without one."""

    headers: Sequence[tuple[str, str]]
    message: bytes
    at: float
    came: list[tuple[float, bytes]] = field(default_factory=list)
    status: int | None = None
    told: str = ""
    rest: bytes = b""

    def take(self, at: float, data: bytes) -> None:
        data = self.rest + data
        while len(data) >= 5 and len(data) >= 5 + (size := int.from_bytes(data[1:5], "big")):
            self.came.append((at, data[5 : 5 + size]))
            data = data[5 + size :]
        self.rest = data

    def trailers(self, block: bytes) -> None:
        self.status = int(_value(block, b"grpc-status") or -1)
        self.told = _value(block, b"grpc-message").decode()


class Connection:
    """One socket. Streams are numbered as they begin."""

    def __init__(self, host: str, port: int) -> None:
        self._streams: dict[int, Stream] = {}
        self._next = 1
        self._rest = b""
        self.socket = socket.create_connection((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        settings = struct.pack(">HIHIHI", 1, 0, 2, 0, 4, _WINDOW)
        opening = _frame(SETTINGS, 0, 0, settings) + _frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", _WINDOW - 65_535))
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + opening)

    def begin(self, stream: Stream) -> None:
        number, self._next = self._next, self._next + 2
        self._streams[number] = stream
        block = b"".join(b"\0" + _text(name) + _text(value) for name, value in stream.headers)
        body = b"\0" + len(stream.message).to_bytes(4, "big") + stream.message
        self.socket.sendall(_frame(HEADERS, END_HEADERS, number, block) + _frame(DATA, END_STREAM, number, body))

    def read(self) -> int:
        """What has come; the number of streams that ended with it."""
        data, at, ended = self.socket.recv(1 << 18), time.monotonic(), 0
        if not data:
            ended = len(self._streams)
            self._streams.clear()
            return ended
        data, start = self._rest + data, 0
        while len(data) - start >= 9:
            high, low, kind, flags, number = _HEAD.unpack_from(data, start)
            end = start + 9 + (high << 8 | low)
            if end > len(data):
                break
            ended += self._frame(at, kind, flags, number & _WINDOW, data[start + 9 : end])
            start = end
        self._rest = data[start:]
        return ended

    def _frame(self, at: float, kind: int, flags: int, number: int, payload: bytes) -> int:
        if kind == PING and not flags & ACK:
            self.socket.sendall(_frame(PING, ACK, 0, payload))
        elif kind == SETTINGS and not flags & ACK:
            self.socket.sendall(_frame(SETTINGS, ACK, 0, b""))
        stream = self._streams.get(number)
        if stream is None:
            return 0
        if kind == DATA:
            stream.take(at, payload)
        elif kind == HEADERS:
            stream.trailers(payload)
        if kind == RST_STREAM or (kind in (DATA, HEADERS) and flags & END_STREAM):
            del self._streams[number]
            return 1
        return 0


def _frame(kind: int, flags: int, number: int, payload: bytes) -> bytes:
    return _HEAD.pack(len(payload) >> 8, len(payload) & 255, kind, flags, number) + payload


def _value(block: bytes, name: bytes) -> bytes:
    """Of a header in plain text, b"" where it is not there."""
    _, found, after = block.partition(name)
    return after[1 : 1 + (after[0] & 127)] if found else b""


def _text(text: str) -> bytes:
    raw = text.encode()
    if len(raw) >= 127 + 128:
        raise ValueError(f"{text[:40]}...: a header of {len(raw)} bytes; this client writes up to 254")
    size = bytes([len(raw)]) if len(raw) < 127 else bytes([127, len(raw) - 127])
    return size + raw


def read_all(address: str, streams: Sequence[Stream], connections: int) -> None:
    """Returns when all have ended. ``streams`` begin in their order."""
    host, _, port = address.rpartition(":")
    opened = [Connection(host, int(port)) for _ in range(connections)]
    with selectors.EpollSelector() as selector:
        for connection in opened:
            selector.register(connection.socket, selectors.EVENT_READ, connection)
        begun, running = 0, 0
        while begun < len(streams) or running:
            wait = streams[begun].at - time.monotonic() if begun < len(streams) else None
            if wait is not None and wait <= 0:
                opened[begun % connections].begin(streams[begun])
                begun, running = begun + 1, running + 1
                continue
            time.sleep(LOOK_S if wait is None else min(LOOK_S, wait))
            for key, _ in selector.select(0):
                running -= key.data.read()
    for connection in opened:
        connection.socket.close()
