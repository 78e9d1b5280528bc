"""Ports that guests listen on."""

from __future__ import annotations

import asyncio
import socket

from lorry.guest import bind


async def test_what_is_written_leaves_at_once() -> None:
    """An answer goes out in two writes: the second must not wait until the client has acknowledged the first."""
    seen: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def came(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    with bind("127.0.0.1", 0, "port", "--port") as listening:
        async with await asyncio.start_server(came, sock=listening):
            _, writer = await asyncio.open_connection(*listening.getsockname())
            assert await seen != 0
            writer.close()
