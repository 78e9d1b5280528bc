"""The engine as a process: configuration on standard input, service on a socket, until the parent goes.

``python -m lorry.engine.process ADDRESS`` reads one line of JSON (EngineConfig, secrets included, which is
why it is not an argument) and serves until standard input closes or a signal comes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys

from lorry.config import EngineConfig, from_plain


async def serve(config: EngineConfig, address: str) -> int:
    """Builds the engine, serves it, and returns 0 when the parent closes the pipe or a signal comes, 1 when the step
    loop has ended by a fault: whoever waits for this process can start another."""
    # Heavy imports stay behind the argument check, so that a usage error answers at once.
    from lorry.engine.build import build_engine
    from lorry.engine.transport_grpc import serve_engine

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    engine = build_engine(config)
    server = await serve_engine(engine, address)
    parent = asyncio.create_task(_parent_gone(stop))
    waits = [asyncio.create_task(stop.wait()), asyncio.create_task(engine.ended.wait())]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        return 1 if engine.ended.is_set() else 0
    finally:
        for task in (parent, *waits):
            task.cancel()
        await asyncio.gather(parent, *waits, return_exceptions=True)
        await server.stop(1.0)
        await engine.close()


async def _parent_gone(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    try:
        while await reader.read(4096):
            pass
        stop.set()
    finally:
        transport.close()


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m lorry.engine.process ADDRESS  (one line of JSON on standard input)", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    line = sys.stdin.buffer.readline()
    config = from_plain(EngineConfig, json.loads(line))
    return asyncio.run(serve(config, sys.argv[1]))


__all__ = ["main", "serve"]

if __name__ == "__main__":
    sys.exit(main())
