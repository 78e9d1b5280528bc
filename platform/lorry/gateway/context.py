"""What the service layer needs of a call, whatever transport brought it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from lorry.errors import DeadlineExceeded, LorryError


class CallContext(Protocol):
    """One call of one client. Belongs to one event loop."""

    @property
    def transport(self) -> str:
        """``grpc`` or ``http``."""
        ...

    def trace_headers(self) -> tuple[str, str]:
        """What the client sent as W3C ``traceparent`` and ``tracestate``, as it came; "" for none."""
        ...

    def api_key(self) -> str:
        """Raises Unauthenticated where the call does not carry exactly one."""
        ...

    def seconds_left(self) -> float | None:
        """Until the client's deadline, none or negative once it has passed; None without one."""
        ...

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        """Calls it once, when the call has ended: answered, refused, cancelled, or its client gone."""
        ...

    def cancel(self, error: LorryError | None = None) -> None:
        """Ends the call now; its handler is cancelled wherever it waits. The client is told by the connection's end or,
        where that carries other calls, by a status once it reads on: that of ``error``, if there is one."""
        ...


def deadline_of(context: CallContext) -> float | None:
    """Seconds left, None without a deadline. Raises DeadlineExceeded where none is left."""
    left = context.seconds_left()
    if left is not None and left <= 0:
        raise DeadlineExceeded("the deadline passed before the request was admitted; allow more time")
    return left


__all__ = ["CallContext", "deadline_of"]
