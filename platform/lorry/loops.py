"""The event loop of the processes that serve."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """As ``asyncio.run``, on uvloop: what a message costs besides its own work is mostly the loop's."""
    import uvloop  # of the server's extra

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def settle() -> None:
    """Call it once what lives as long as the process has been made. The collector passes over it from then on: a full
    pass over a registry's snapshot holds up every stream for as long as it takes."""
    gc.collect()
    gc.freeze()


__all__ = ["run", "settle"]
