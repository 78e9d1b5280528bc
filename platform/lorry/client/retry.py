"""Which failed calls are tried again, and when.

======================================  =====================================================
the try ended with                      it is tried again
======================================  =====================================================
UNAVAILABLE                             yes
RESOURCE_EXHAUSTED with a RetryInfo     yes
anything else                           no
a pushback below 0, token budget spent  no
a message of a stream had arrived       no
a call that must not be done twice      no (``Unary.repeatable``)
======================================  =====================================================

The server's RetryInfo says when; without one the wait doubles from try to try. One deadline bounds all tries of a call
together: where the next would begin after it, the error is raised at once.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc

from lorry.api.status import PUSHBACK_KEY, error_from_rpc
from lorry.errors import LorryError, TokenBudgetSpent

_HERD = 0.1
"""Those that were told the same time come back within so much of it, not at once."""


@dataclass(frozen=True, slots=True)
class Retry:
    """``max_retries`` 0 is none. ``first_s``: the wait before the first retry where the server names none; it doubles
    with each, and half of it is drawn. A wait over ``longest_s`` is not waited: the error is raised, with the server's
    time in ``retry_after_s``. ``clock`` and ``draw`` (0 to 1) are there for tests."""

    max_retries: int = 2
    first_s: float = 0.2
    longest_s: float = 30.0
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    draw: Callable[[], float] = field(default=random.random, repr=False)

    def wait_s(self, error: LorryError, failed: int, pushback: float | None = None) -> float | None:
        """Seconds before the next try after ``failed`` others and this one; None: there is none."""
        if failed >= self.max_retries:
            return None
        if isinstance(error, TokenBudgetSpent) or (pushback is not None and pushback < 0):
            return None
        told = error.retry_after_s if error.retry_after_s is not None else pushback
        if error.grpc_code != "UNAVAILABLE" and not (error.grpc_code == "RESOURCE_EXHAUSTED" and told is not None):
            return None
        if told is None:
            return min(self.longest_s, self.first_s * 2.0**failed * (0.5 + 0.5 * self.draw()))
        return told * (1 + _HERD * self.draw()) if told <= self.longest_s else None


class Tries:
    """The tries of one call. ``timeout_s`` None is no deadline."""

    def __init__(self, retry: Retry, timeout_s: float | None = None, repeatable: bool = True) -> None:
        self._retry = retry
        self._repeatable = repeatable
        self._deadline = None if timeout_s is None else retry.clock() + timeout_s
        self._first_timeout = timeout_s
        self._failed = 0

    @property
    def left_s(self) -> float | None:
        """What the next try may take."""
        if self._deadline is None or not self._failed:
            return self._first_timeout
        return max(0.0, self._deadline - self._retry.clock())

    def failed(self, rpc_error: grpc.RpcError) -> float:
        """Seconds to wait before the next try. Raises the error as a leaf of ``lorry.errors`` where there is none."""
        error = error_from_rpc(rpc_error)
        wait_s = self._retry.wait_s(error, self._failed, pushback_s(rpc_error)) if self._repeatable else None
        if wait_s is None:
            raise error from None
        self._failed += 1
        if self.left_s is not None and wait_s >= self.left_s:
            raise error from None
        return wait_s


def pushback_s(rpc_error: grpc.RpcError) -> float | None:
    """``grpc-retry-pushback-ms`` in seconds; below 0, as gRPC has it, also where it is no number. None: not there."""
    call: Any = rpc_error
    for key, value in call.trailing_metadata() or ():
        if key == PUSHBACK_KEY:
            try:
                return int(value) / 1000
            except ValueError:
                return -1.0
    return None


__all__ = ["Retry", "Tries", "pushback_s"]
