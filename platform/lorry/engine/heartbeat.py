"""Where the step loop stands, and the look at every owner when it rests."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from lorry.scheduler.plan import StepPlan

IDLE_S = 0.05
"""The loop looks at its owners once it has had nothing to do for so long, so that no request waits for it."""
log = logging.getLogger(__name__)


class Heartbeat:
    """Written by the step loop, read by the watchdog's thread: each field on its own is always right."""

    __slots__ = ("began", "plan", "thread", "turns")

    def __init__(self) -> None:
        self.turns = 0
        """Turns begun since the start."""
        self.began: float | None = None
        """When the turn under way began, by the core's clock; None while the loop rests."""
        self.plan: StepPlan | None = None
        """What the device works on now."""
        self.thread: int | None = None
        """The loop's, for its stack."""

    def turn(self, now: float) -> None:
        self.thread = threading.get_ident()
        self.turns += 1
        self.began = now

    def rest(self) -> None:
        self.began = None


class Audit:
    """``check_integrity`` of every owner, and what else wants an idle moment, once after each run of steps. On
    SmolLM2 some four milliseconds."""

    def __init__(self, owners: Sequence[Callable[[], None]]) -> None:
        self._owners = tuple(owners)
        self._due_at: float | None = None
        self._checks = 0
        self._failures = 0

    @property
    def due_at(self) -> float | None:
        """When to look if nothing runs until then; None where no step has run since the last look."""
        return self._due_at

    def note_step(self, now: float) -> None:
        if self._owners:
            self._due_at = now + IDLE_S

    def run(self) -> None:
        """Raises what the first of them raises, as a rule the InternalError of an owner that contradicts itself:
        nothing may be answered after it."""
        self._due_at = None
        self._checks += 1
        try:
            for owner in self._owners:
                owner()
        except Exception:  # counted, and raised on
            self._failures += 1
            log.critical("what an idle engine checks has failed; it ends")
            raise

    def state(self) -> dict[str, int]:
        return {"checks": self._checks, "failures": self._failures}


__all__ = ["IDLE_S", "Audit", "Heartbeat"]
