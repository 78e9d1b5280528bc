"""Hears where a kernel is launched in Triton's interpreter: for what stands in for a graph on a CPU, and for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, wraps
from typing import Any


@dataclass(frozen=True, slots=True)
class Launch:
    """``kernel[grid](*args, **kwargs)``; constexprs and options are in ``kwargs``. ``run`` does it, as often as it is
    called."""

    kernel: str
    grid: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    run: Callable[[], Any] = field(compare=False)


Listener = Callable[[Launch], Any]
"""Is told instead of the launch, and answers what the launch would."""


class _Here(threading.local):
    listener: Listener | None = None


_HERE = _Here()


@contextmanager
def heard(listener: Listener) -> Iterator[None]:
    """This thread's launches go to ``listener``, until the end of the block."""
    _listen()
    before, _HERE.listener = _HERE.listener, listener
    try:
        yield
    finally:
        _HERE.listener = before


@cache
def _listen() -> None:
    """Once for the process: Triton calls hooks before a launch that it compiled, none before one that it interprets.
    A thread that nobody listens to launches as before."""
    from triton.runtime.interpreter import InterpretedFunction

    plain = InterpretedFunction.run

    @wraps(plain)
    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        def now() -> Any:
            return plain(kernel, *args, grid=grid, warmup=warmup, **kwargs)

        if _HERE.listener is None or warmup:
            return now()
        return _HERE.listener(Launch(kernel.__name__, grid, args, kwargs, now))

    InterpretedFunction.run = run


__all__ = ["Launch", "Listener", "heard"]
