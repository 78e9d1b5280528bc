"""Which Triton kernels are launched: by a step's body, as a graph captures it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from lorry_kernels.ops.launch import interpreted
from lorry_kernels.ops.launches import Launch, heard


def launched(call: Callable[[], object]) -> list[str]:
    """Names of the kernels that ``call`` launches, in their order. What other libraries launch is not heard."""
    names: list[str] = []
    if not interpreted():
        _compiled(names, call)
        return names

    def listener(launch: Launch) -> Any:
        names.append(launch.kernel)
        return launch.run()

    with heard(listener):
        call()
    return names


def _compiled(names: list[str], call: Callable[[], object]) -> None:
    """No profiler: its library is not on every bare machine, and graphs do not outlive it everywhere."""
    from triton.runtime.jit import JITFunction

    plain = JITFunction.run

    @wraps(plain)
    def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        names.append(kernel.fn.__name__)
        return plain(kernel, *args, **kwargs)

    JITFunction.run = run
    try:
        call()
    finally:
        JITFunction.run = plain


__all__ = ["launched"]
