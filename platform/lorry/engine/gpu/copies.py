"""Host to device copies beside the computation, and the order that keeps both right.

Two hazards. A copy must not overwrite a page that a kernel still reads: the ledger hands out a freed page only when
the step that read it is done, and ``begin`` makes the copies wait for what the compute stream was given before. And a
kernel must not read a page whose copy is under way: ``finish`` makes the compute stream wait for the copies, and only
then is the slot published, on the compute stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch


class Copies(Protocol):
    def begin(self) -> None:
        """What is copied from now on comes after all that the compute stream was given."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """``source`` lies in pinned host memory and stays until ``finish`` has been waited for by the device."""

    def finish(self) -> None:
        """What the compute stream is given from now on comes after the copies."""


class InlineCopies:
    """Of a device whose copies are done when they return: the CPU."""

    def begin(self) -> None:
        """Nothing runs meanwhile."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source)

    def finish(self) -> None:
        """They are done."""


class StreamCopies:
    """On a CUDA stream of their own."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch types its members only
        self._compute = torch.cuda.current_stream(device)

    def begin(self) -> None:
        self._stream.wait_stream(self._compute)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def finish(self) -> None:
        self._compute.wait_stream(self._stream)


@contextmanager
def copying(copies: Copies) -> Iterator[None]:
    """``begin``, and ``finish`` whatever happens: a failed load's copies are over too before its pages serve again."""
    copies.begin()
    try:
        yield
    finally:
        copies.finish()


__all__ = ["Copies", "InlineCopies", "StreamCopies", "copying"]
