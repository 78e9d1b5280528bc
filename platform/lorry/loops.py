"""The event loop of the processes that serve."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any, TypeVar

YOUNG = 10_000
"""New objects (containers, by the net count) for which the collector looks again: at Python's 700, hundreds of streams
have it look every few messages, at objects that live as long as their streams."""

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """As ``asyncio.run``, on uvloop: what a message costs besides its own work is mostly the loop's."""
    import uvloop  # of the server's extra

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def settle() -> None:
    """Call it once what lives as long as the process has been made. The collector passes over it from then on: a full
    pass over a registry's snapshot holds up every stream for as long as it takes. And it looks less often at the
    rest."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, 20, 50)


__all__ = ["YOUNG", "run", "settle"]
