"""Names what stands still: a request without progress, one that waits too long, a step that does not end.

It changes nothing but the last: a loop that is stuck past its limit cannot be helped from inside, so the process ends
and its supervisor starts another.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from lorry.config import WatchdogConfig
from lorry.engine.events import EngineOccurrence, RequestAdmitted
from lorry.engine.heartbeat import Heartbeat
from lorry.ids import RequestId
from lorry.scheduler.census import Standing
from lorry.scheduler.plan import StepPlan

STUCK_STATUS = 70
"""The exit status of a process whose step loop was stuck past its limit."""
_FINDINGS = 16
_NAMED = 64
log = logging.getLogger(__name__)


class Watched(Protocol):
    """What it looks at: ``lorry.engine.core.EngineCore``."""

    heartbeat: Heartbeat

    def census(self) -> Future[list[Standing]]: ...

    def requests_in(self, plan: StepPlan) -> tuple[RequestId, ...]: ...


@dataclass(frozen=True, slots=True)
class Finding:
    """``kind``: ``no_progress``, ``queued`` or ``step``. ``requests`` are the gateway's ids, the first ones of a step;
    ``seconds`` since when it stands."""

    kind: str
    requests: tuple[str, ...]
    seconds: float


@dataclass(slots=True)
class _Seen:
    progress: int
    running: bool
    at: float
    turns: int
    named: bool = False


class Watchdog:
    """``start`` and ``stop`` its thread, or call ``look`` by hand. Also a listener of the engine's events: it sleeps
    until a request is admitted and looks ``every_s`` seconds as long as any lives."""

    def __init__(
        self,
        config: WatchdogConfig,
        core: Watched,
        clock: Callable[[], float] = time.monotonic,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        self._config = config
        self._core = core
        self._clock = clock
        self._end = end
        self._seen: dict[RequestId, _Seen] = {}
        self._asked: Future[list[Standing]] | None = None
        self._step_named = -1
        self._counts: Counter[str] = Counter()
        self._findings: deque[Finding] = deque(maxlen=_FINDINGS)
        self._work = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lorry-watchdog", daemon=True)
        bounds = (config.request_s, config.queued_s, config.step_s, config.step_limit_s)
        self.every_s = max(0.01, min(bounds) / 4)

    def __call__(self, event: EngineOccurrence) -> None:
        if isinstance(event, RequestAdmitted):
            self._work.set()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Idempotent."""
        self._stopping.set()
        self._work.set()
        if self._thread.is_alive():
            self._thread.join()

    def state(self) -> dict[str, Any]:
        """Bounded JSON: counts since start by kind, and the last findings."""
        return {"counts": dict(self._counts), "last": [asdict(finding) for finding in tuple(self._findings)]}

    def look(self) -> bool:
        """One look. False where no request lives and the loop rests, so that nothing can stand still."""
        now = self._clock()
        resting = self._look_at_step(now)
        asked = self._asked
        if asked is None or asked.cancelled():
            self._asked = self._core.census()
            return True
        if not asked.done():
            return True
        self._asked = None
        standings = asked.result()
        self._look_at_requests(standings, now)
        return bool(standings) or not resting

    def _look_at_step(self, now: float) -> bool:
        """Whether the loop rests."""
        beat = self._core.heartbeat
        turns, began, plan = beat.turns, beat.began, beat.plan
        if began is None:
            return True
        took = now - began
        if took < self._config.step_s:
            return False
        if self._step_named != turns:
            self._step_named = turns
            requests = self._core.requests_in(plan) if plan is not None else ()
            self._note(Finding("step", tuple(map(str, requests[:_NAMED])), round(took, 3)))
            named = ", ".join(requests[:_NAMED]) or "no request"
            log.error("a step has taken %.1f s, with %s; the loop stands at:\n%s", took, named, _stack(beat.thread))
        if took >= self._config.step_limit_s:
            log.critical(
                "a step has taken %.1f s, the limit is %g s; the process ends", took, self._config.step_limit_s
            )
            logging.shutdown()
            self._end(STUCK_STATUS)
        return False

    def _look_at_requests(self, standings: Sequence[Standing], now: float) -> None:
        turns = self._core.heartbeat.turns
        seen: dict[RequestId, _Seen] = {}
        for one in standings:
            before = self._seen.get(one.request_id)
            if before is None or (before.progress, before.running) != (one.progress, one.running):
                before = _Seen(one.progress, one.running, now, turns)
            seen[one.request_id] = before
            stood = now - before.at
            if before.named:
                continue
            if not one.running and stood >= self._config.queued_s:
                self._name(before, "queued", one, stood)
            elif one.running and stood >= self._config.request_s and turns > before.turns:
                self._name(before, "no_progress", one, stood)
        self._seen = seen

    def _name(self, seen: _Seen, kind: str, one: Standing, stood: float) -> None:
        seen.named = True
        self._note(Finding(kind, (str(one.request_id),), round(stood, 3)))
        what = "runs without progress" if kind == "no_progress" else "has waited"
        log.error("request %s %s for %.1f s, at %d tokens", one.request_id, what, stood, one.progress)

    def _note(self, finding: Finding) -> None:
        self._counts[finding.kind] += 1
        self._findings.append(finding)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._work.wait()
            self._work.clear()
            while not self._stopping.is_set():
                try:
                    busy = self.look()
                except Exception:  # it must outlive whatever one look meets
                    log.exception("the watchdog could not look")
                    busy = True
                if not busy and not self._work.is_set():
                    break
                self._work.clear()
                self._stopping.wait(self.every_s)


def _stack(thread: int | None) -> str:
    frame = sys._current_frames().get(thread) if thread is not None else None
    return "".join(traceback.format_stack(frame)) if frame is not None else "(no stack)"


__all__ = ["STUCK_STATUS", "Finding", "Watched", "Watchdog"]
