"""A fake engine as a process of its own, until it is killed: ``python -m tests.integration.crash.engine SOCKET``."""

from __future__ import annotations

import asyncio
import sys

from lorry.engine.transport_server import serve_engine
from tests.unit.engine_contract.fakes import fake_engine


async def main(socket: str) -> None:
    server = await serve_engine(fake_engine(), f"unix:{socket}")
    await asyncio.Event().wait()
    await server.stop()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
