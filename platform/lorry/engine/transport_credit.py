"""How much of a call's output may be on its way before its reader takes any. No grpc."""

from __future__ import annotations

CALL_CREDIT = 32
"""Outputs that a call may send before its reader gives credit.

A call has at most one output a step. A reader that keeps up gives credit back in halves, so 16 outputs are left when a
grant sets out: they cover 80 ms of steps of 5 ms, more than a grant's way back and a pause of the gateway's loop take.
An output of a token or two is about 200 bytes, so 1,000 readers that take nothing hold 6 MB in the gateway, and in the
engine one merged output each, which their ``max_tokens`` bound.
"""


class Grants:
    """The reader's side of one call: outputs that it has taken and not yet given credit for.

    ``window`` is the engine's ``call_credit``, or 0 while it is not known: then every output is credited at once, which
    is right for any window.
    """

    __slots__ = ("_due", "_step")

    def __init__(self, window: int) -> None:
        self._step = max(1, window // 2)
        self._due = 0

    def take(self, outputs: int) -> int:
        """That many more were taken. The credit to give now, 0 for none yet."""
        self._due += outputs
        if self._due < self._step:
            return 0
        due, self._due = self._due, 0
        return due


__all__ = ["CALL_CREDIT", "Grants"]
