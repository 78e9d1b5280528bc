"""Keeps one engine process alive: starts it again when it ends unasked or stops answering, and says so."""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

from lorry.config import EngineConfig, RestartConfig
from lorry.engine.contract import EngineInfo
from lorry.engine.launch import EngineProcess
from lorry.engine.transport_grpc import GrpcEngineClient
from lorry.errors import EngineUnavailable, LorryError
from lorry.logs import fields

log = logging.getLogger(__name__)


class Phase(StrEnum):
    """STARTING: a child loads and warms up. WARM: it serves. WAITING: none runs, the next start has its time.
    STOPPED: before the first start and after ``stop``."""

    STARTING = "starting"
    WARM = "warm"
    WAITING = "waiting"
    STOPPED = "stopped"


class Backoff:
    """Seconds before each start: RestartConfig's."""

    def __init__(self, config: RestartConfig, draw: Callable[[], float] = random.random) -> None:
        self._config = config
        self._draw = draw
        self._next_s = config.first_s

    def next(self) -> float:
        wait, config = self._next_s, self._config
        self._next_s = min(wait * config.factor, config.most_s)
        return wait * (1 + config.jitter * (2 * self._draw() - 1))

    def reset(self) -> None:
        self._next_s = self._config.first_s


class EngineSupervisor:
    """``start``, then ``client`` serves for as long as this runs, through restarts, then ``stop``. One event loop.

    While no engine is warm, open streams have ended and new ones are refused at once, with EngineUnavailable and the
    seconds until the next engine should be: nothing was sent, so they may be sent again. A child is dead before the
    next one starts.
    """

    def __init__(
        self,
        config: EngineConfig,
        address: str,
        log_file: Path,
        restarts: RestartConfig | None = None,
        on_change: Callable[[str], None] = lambda line: None,
    ) -> None:
        """``on_change`` is told what happens after the first start, in lines for people."""
        self._config = config
        self._restarts = restarts or RestartConfig()
        self._log_file = log_file
        self._on_change = on_change
        self._backoff = Backoff(self._restarts)
        self._child: EngineProcess | None = None
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._hurry = asyncio.Event()
        self._since = time.monotonic()
        self._next_start = 0.0
        self._start_took_s = self._restarts.first_s
        self._status: int | None = None
        self._why = ""
        self._tail = ""
        self.address = address
        self.phase = Phase.STOPPED
        self.restarts = 0
        """Starts after the first that led to a warm engine."""
        self.failed_starts = 0
        self.listeners: list[Callable[[], None]] = []
        """Called at each change of phase."""
        self.client = GrpcEngineClient(address)
        self.client.suspend(self._down)

    @property
    def pid(self) -> int | None:
        """Of the child that runs now."""
        return self._child.pid if self._child is not None and self._child.status is None else None

    async def start(self) -> EngineInfo:
        """Raises EngineUnavailable, with the log's last lines, where the first child does not become warm: a setting
        that cannot be served should be told at once, not tried again."""
        self._enter(Phase.STARTING)
        info = await self._start_child()
        self._task = asyncio.create_task(self._keep())
        return info

    async def stop(self) -> None:
        """The child drains and ends; none is started any more. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._child is not None:
            await self._child.stop(self._config.drain_s + self._restarts.stop_s, self._hurry)
        self._enter(Phase.STOPPED)
        await self.client.close()

    def hurry(self) -> None:
        """Whatever drains ends at once."""
        self._hurry.set()

    async def reaches(self, phase: Phase) -> None:
        """Returns when it is in that phase."""
        while self.phase is not phase:
            changed = self._changed
            await changed.wait()

    def retry_after_s(self) -> float:
        """When another try makes sense: the next start, and as long as the last one took."""
        now = time.monotonic()
        match self.phase:
            case Phase.STARTING:
                left = self._since + self._start_took_s - now
            case Phase.WAITING:
                left = self._next_start + self._start_took_s - now
            case _:
                left = self._restarts.first_s + self._start_took_s
        return round(max(left, 0.1), 3)

    def state(self) -> dict[str, Any]:
        """Bounded JSON. ``log_tail`` is the log's end when the last child ended unasked."""
        calls, waiting = self.client.held
        return {
            "phase": self.phase.value,
            "phase_seconds": round(time.monotonic() - self._since, 3),
            "pid": self.pid,
            "restarts": self.restarts,
            "failed_starts": self.failed_starts,
            "last_exit_status": self._status,
            "last_exit_reason": self._why,
            "log_tail": self._tail,
            "retry_after_seconds": None if self.phase is Phase.WARM else self.retry_after_s(),
            "calls": calls,
            "outputs_waiting": waiting,
        }

    async def _keep(self) -> None:
        while True:
            try:
                assert self._child is not None
                if self.phase is Phase.WARM:
                    await self._watch(self._child)
                await self._bury(self._child)
                await self._start_again()
            except Exception:  # whatever one round meets, the next child must come
                log.exception("the engine's supervisor failed; it goes on")
                await asyncio.sleep(self._restarts.first_s)

    async def _watch(self, child: EngineProcess) -> None:
        """Returns when the child has ended, by itself or because it did not answer."""
        ended = asyncio.ensure_future(child.wait())
        answered = time.monotonic()
        try:
            while True:
                await asyncio.wait([ended], timeout=self._restarts.look_s)
                if ended.done():
                    self._why = _words(ended.result())
                    return
                try:
                    await self.client.probe(self._restarts.answer_s)
                    answered = time.monotonic()
                except EngineUnavailable:
                    if time.monotonic() - answered >= self._restarts.answer_s and not ended.done():
                        self._why = f"did not answer for {self._restarts.answer_s:g} s and was killed"
                        return
                except LorryError:
                    answered = time.monotonic()  # it drains, and says so
        finally:
            ended.cancel()

    async def _bury(self, child: EngineProcess) -> None:
        """Returns when the child is dead and everyone who waited for it has been told."""
        if time.monotonic() - self._since >= self._restarts.reset_s and self.phase is Phase.WARM:
            self._backoff.reset()
        self.client.suspend(self._down)
        await child.kill()
        self._status, self._tail = child.status, child.tail()
        told = fields(replica=self._config.replica, pid=child.pid, status=child.status)
        log.error("the engine %s\n%s", self._why, self._tail, extra=told)

    async def _start_again(self) -> None:
        while True:
            wait_s = self._backoff.next()
            self._next_start = time.monotonic() + wait_s
            self._enter(Phase.WAITING)
            self._on_change(f"engine: {self._why}; it is started again in {wait_s:.1f} s")
            await asyncio.sleep(wait_s)
            self._enter(Phase.STARTING)
            try:
                await self._start_child()
            except EngineUnavailable as error:
                self.failed_starts += 1
                self._why = error.message.partition("\n")[0].removeprefix("the engine ")
                log.error("%s", error.message)
                continue
            self.restarts += 1
            self._on_change(f"engine: warm again after {self._start_took_s:.1f} s")
            told = fields(replica=self._config.replica, pid=self.pid, seconds=round(self._start_took_s, 3))
            log.warning("the engine is warm again", extra=told)
            return

    async def _start_child(self) -> EngineInfo:
        began = time.monotonic()
        child = self._child = EngineProcess(self._config, self.client, self._log_file)
        try:
            info = await child.start(self._restarts.start_s)
        except EngineUnavailable:
            self._status, self._tail = child.status, child.tail()
            raise
        self._start_took_s = time.monotonic() - began
        self.client.retry_after_s = round(self._restarts.first_s + self._start_took_s, 3)
        self.client.resume()
        self._enter(Phase.WARM)
        return info

    def _enter(self, phase: Phase) -> None:
        self.phase, self._since = phase, time.monotonic()
        self._changed.set()
        self._changed = asyncio.Event()
        for listener in self.listeners:
            listener()

    def _down(self) -> EngineUnavailable:
        return EngineUnavailable(
            "the engine is not running and will be started again; send the request again",
            retry_after_s=self.retry_after_s(),
        )


def _words(status: int) -> str:
    if status < 0:
        try:
            return f"was ended by {signal.Signals(-status).name}"
        except ValueError:
            return f"was ended by signal {-status}"
    return f"ended with {status}"


__all__ = ["Backoff", "EngineSupervisor", "Phase"]
