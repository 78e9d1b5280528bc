"""The engine as a process: configuration on standard input, service on a socket, until the parent goes.

``python -m lorry.engine.process ADDRESS`` reads one line of JSON (EngineConfig, secrets included, which is
why it is not an argument). It listens at once and answers UNAVAILABLE until it is warm. A signal drains it, a second
one ends it at once; so does the end of standard input, since then nobody is there to answer.

Exit statuses: 0 as it was told to end, 1 a fault of the step loop, 70 a step that did not end
(``lorry.engine.watchdog``), 78 a base or setting that cannot be served.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lorry import logs
from lorry.config import EngineConfig, from_plain
from lorry.errors import LorryError
from lorry.loops import run, settle

if TYPE_CHECKING:
    from lorry.engine.build import BuiltEngine
    from lorry.engine.local import LocalEngine

FAULT_STATUS = 1
CONFIG_STATUS = 78
REFUSAL = "the engine cannot start: "
"""Stands before the reason in the log's last line."""
_log = logging.getLogger("lorry.engine.process")  # whose __name__ is __main__ in its process


class _Ending:
    """How the process is to end: ``stop`` drains, ``now`` does not wait."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.now = asyncio.Event()

    def signalled(self) -> None:
        if self.stop.is_set():
            self.now.set()
        self.stop.set()

    def orphaned(self) -> None:
        self.now.set()
        self.stop.set()


async def serve(config: EngineConfig, address: str) -> int:
    """Serves an engine of this configuration; returns the exit status."""
    # Heavy imports stay behind the argument check, so that a usage error answers at once.
    from lorry.engine.build import build
    from lorry.engine.starting import StartingEngine
    from lorry.engine.transport_grpc import serve_engine

    ending = _Ending()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, ending.signalled)
    front = StartingEngine()
    server = await serve_engine(front, address)
    parent = asyncio.create_task(_parent_gone(ending))
    engine: LocalEngine | None = None
    try:
        built = _on_thread(lambda: build(config))
        if not await _first(built, ending.stop):
            return 0
        engine = built.result().open()
        warm = asyncio.ensure_future(engine.info())
        if not await _first(warm, ending.stop):
            return 0
        warm.result()
        settle()
        front.open(engine)
        _log.info("warm, serving at %s", address)
        await _first(asyncio.ensure_future(engine.ended.wait()), ending.stop)
        if engine.ended.is_set():
            return FAULT_STATUS
        _log.info("draining")
        await _first(asyncio.ensure_future(engine.drain(config.drain_s)), ending.now)
        return 0
    except LorryError as error:
        if engine is not None and engine.ended.is_set():
            return FAULT_STATUS  # while it warmed up; its log says how
        _log.error("%s%s: %s", REFUSAL, error.reason, error.message)
        return CONFIG_STATUS
    finally:
        parent.cancel()
        await asyncio.gather(parent, return_exceptions=True)
        if engine is not None:
            await engine.close()  # first, so that what still runs is told so over the stream
        await server.stop(1.0)


async def _first(work: asyncio.Future[Any], event: asyncio.Event) -> bool:
    """Whether the work was done when it or the event came first; else it is cancelled."""
    told = asyncio.ensure_future(event.wait())
    await asyncio.wait([work, told], return_when=asyncio.FIRST_COMPLETED)
    for future in (work, told):
        if not future.done():
            future.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await future
    return not work.cancelled()


def _on_thread(build: Callable[[], BuiltEngine]) -> asyncio.Future[BuiltEngine]:
    """On a thread that ends with the process: loading cannot be interrupted, and a signal must not wait for it."""
    loop = asyncio.get_running_loop()
    built: asyncio.Future[BuiltEngine] = loop.create_future()

    def tell(set_result: Callable[[Any], None], result: Any) -> None:
        if not built.done():
            set_result(result)

    def work() -> None:
        outcome: tuple[Callable[[Any], None], Any]
        try:
            outcome = built.set_result, build()
        except Exception as error:  # whoever waits for the future raises it
            outcome = built.set_exception, error
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(tell, *outcome)

    threading.Thread(target=work, name="lorry-build", daemon=True).start()
    return built


async def _parent_gone(ending: _Ending) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    try:
        while await reader.read(4096):
            pass
        ending.orphaned()
    finally:
        transport.close()


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m lorry.engine.process ADDRESS  (one line of JSON on standard input)", file=sys.stderr)
        return 2
    line = sys.stdin.buffer.readline()
    config = from_plain(EngineConfig, json.loads(line))
    logs.set_up(config.log_format, config.log_level)
    return run(serve(config, sys.argv[1]))


__all__ = ["CONFIG_STATUS", "FAULT_STATUS", "REFUSAL", "main", "serve"]

if __name__ == "__main__":
    status = main()
    logging.shutdown()
    # Not sys.exit: a load that was interrupted still runs on its thread, and must not meet an interpreter in pieces.
    os._exit(status)
