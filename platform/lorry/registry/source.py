"""Keeps a snapshot current: reads the change log when it is told of changes and now and then anyway."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

from sqlalchemy import Connection

from lorry.errors import Unavailable
from lorry.histogram import LAG_S, Histogram
from lorry.registry import changes
from lorry.registry.changes import Kind, Logged
from lorry.registry.db.engine import Database
from lorry.registry.keys import Peppers
from lorry.registry.listening import EpochListener
from lorry.registry.loading import everything, rows_of
from lorry.registry.snapshot import Snapshot
from lorry.registry.tables import Tables

DELTA_ROWS = 1000
"""Changes read at a time. An epoch of more of them reads everything again."""
POLL_S = 0.2
POLL_BESIDE_LISTENER_S = 1.0
"""On PostgreSQL, which announces changes: a poll is for the announcements that were lost."""
POLL_TIMEOUT_S = 3.0
"""A poll that gets nothing for so long is given up, and the next begins on a new connection."""
LATE_S = 0.5
"""A poll ends within its pause and its timeout. Where none has for so much longer, this process stood still."""
GRACE_S = 1.0
"""From when that is noticed, so long is waited for the next poll to end."""
LEAVE_S = 0.5
"""Whoever ends a poll waits so long for the server to hear of it."""
_TICK_S = 0.05
"""While a poll runs the event loop turns at least this often: should the wake-up of another thread (SQLite's) be lost,
what it has put into the loop's queue is found then."""

_KINDS = frozenset(Kind)
"""A newer release may log kinds that this one does not know; then everything is read again."""

_log = logging.getLogger(__name__)


class SnapshotSource:
    """The gateway's view of the registry. Belongs to one event loop.

    ``start`` loads the first snapshot; ``run`` keeps it current until cancelled and survives an unreachable database,
    keeping the last snapshot (``age`` says how old it is); ``refresh`` is one poll. A snapshot is the registry at
    exactly its epoch.
    """

    def __init__(
        self,
        database: Database,
        peppers: Peppers,
        poll_seconds: float = POLL_S,
        clock: Callable[[], float] = time.monotonic,
        poll_timeout: float = POLL_TIMEOUT_S,
    ) -> None:
        self._database = database
        self._peppers = peppers
        self._clock = clock
        self._poll_timeout = poll_timeout
        self._snapshot: Snapshot | None = None
        self._checked_at = self._tried_at = clock()
        self._noticed_at: float | None = None
        self._moved_at = 0.0
        self._lock = asyncio.Lock()
        self._given_up: asyncio.Task[Snapshot] | None = None
        self._wake = asyncio.Event()
        self._postgresql = database.engine.dialect.name == "postgresql"
        self._poll_seconds = poll_seconds
        self.listener = EpochListener(database.engine, self._wake.set) if self._postgresql else None
        self.lag = Histogram(LAG_S)
        """Of each poll that brought changes: none of them was made longer ago."""
        self.full_loads = 0
        """How often everything was read: 1 after ``start``, more only after gaps."""

    def current(self) -> Snapshot:
        """The newest snapshot. Raises Unavailable before the first one is loaded."""
        if self._snapshot is None:
            raise Unavailable("registry: no snapshot is loaded yet; try again", retry_after_s=1.0)
        return self._snapshot

    def age(self) -> float:
        """Seconds for which ``current`` may have been out of date: since the last poll that was answered was sent."""
        return self._clock() - self._checked_at

    def stood_still(self) -> bool:
        """Whether ``age`` says nothing of the registry yet, since this process (or its machine) was stopped and no poll
        that began since has ended. For ``GRACE_S`` at most after it was noticed."""
        now = self._clock()
        if now - self._tried_at < self._poll_seconds + self._poll_timeout + LATE_S:
            self._noticed_at = None
            return False
        if self._noticed_at is None:
            self._noticed_at = now
        return now - self._noticed_at < GRACE_S

    async def start(self) -> Snapshot:
        """Loads the first snapshot; the database's own error goes through."""
        return await self.refresh()

    async def run(self) -> None:
        """Polls until cancelled: at once where a change is announced, and every ``poll_seconds``."""
        async with _beside(self.listener):
            failing = False
            while True:
                self._wake.clear()
                try:
                    await self.refresh()
                    if failing:
                        _log.warning("registry answers again at epoch %d", self.current().epoch)
                    failing = False
                except Exception as error:  # the last snapshot holds until it can be read again
                    if not failing:
                        _log.error("registry cannot be read, keeping the last snapshot: %s", error.__cause__ or error)
                    failing = True
                pause = min(POLL_S, self._poll_seconds) if failing else self._poll_seconds
                if self.stood_still():  # what was answered may have been asked before that
                    pause = 0.0
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._wake.wait()

    async def refresh(self) -> Snapshot:
        """Brings the snapshot up to the registry's epoch as of now, and answers it. Raises Unavailable where the
        database does not answer in time."""
        async with self._lock:
            asked_at, before = self._clock(), self._snapshot
            try:
                self._snapshot = await self._bounded()
            except BaseException:  # this one tells that the registry is silent
                self._tried_at = self._clock()
                raise
            else:
                if before is not None and self._snapshot.epoch != before.epoch:
                    self.lag.observe(self.age())
                self._checked_at = self._tried_at = asked_at
                return self._snapshot
            finally:
                self.stood_still()  # looked at here too, so that each stop has a grace of its own

    async def _bounded(self) -> Snapshot:
        """A poll that is not answered is given up. On PostgreSQL it is cancelled: its connection then asks the server
        to stop, which a paused one does not hear, and is closed when it is cancelled again. SQLite ends a poll by
        itself after its busy timeout, and its driver does not bear being cancelled twice: there the next poll waits."""
        if self._given_up is not None:
            if self._postgresql:
                self._given_up.cancel()
            elif not await self._ends(self._given_up):
                raise self._silent()
        task = asyncio.create_task(self._read())
        task.add_done_callback(_forget)
        try:
            if await self._ends(task):
                return task.result()
        except asyncio.CancelledError:
            if self._postgresql:
                task.cancel()
                await asyncio.wait({task}, timeout=LEAVE_S)
                task.cancel()
            else:
                await self._ends(task)
            raise
        self._given_up = task
        if self._postgresql:
            task.cancel()
            await self._database.engine.dispose()  # the connections that wait in the pool may be as dead as this one
        raise self._silent()

    async def _ends(self, task: asyncio.Task[Snapshot]) -> bool:
        """Whether it does within the timeout after its last sign of life, not counting time in which this process stood
        still."""
        self._moved()
        time_of = time.monotonic
        while not task.done() and time_of() - self._moved_at < self._poll_timeout:
            began = time_of()
            await asyncio.wait({task}, timeout=_TICK_S)
            if (late := time_of() - began - _TICK_S) > LATE_S:
                self._moved_at += late
        return task.done()

    def _silent(self) -> Unavailable:
        return Unavailable(
            f"registry: the database has not answered for {self._poll_timeout:g} s; try again", retry_after_s=1.0
        )

    async def _read(self) -> Snapshot:
        return await self._database.of_one_moment(partial(self._newer, self._snapshot))

    def _newer(self, snapshot: Snapshot | None, connection: Connection) -> Snapshot:
        while True:
            epoch, log = changes.read_after(connection, snapshot.epoch if snapshot else 0, DELTA_ROWS)
            if snapshot is None:
                return self._load(connection, epoch)
            if epoch == snapshot.epoch:
                return snapshot
            readable = _whole_epochs(log, snapshot.epoch)
            if not readable:
                return self._load(connection, epoch)
            snapshot = _apply(connection, snapshot, readable)
            self._moved()
            if snapshot.epoch == epoch:
                return snapshot

    def _load(self, connection: Connection, epoch: int) -> Snapshot:
        self.full_loads += 1
        snapshot = Snapshot(epoch, Tables(), self._peppers)
        for part in everything(connection):
            snapshot = snapshot.replaced(epoch, part)
            self._moved()
            # The collector is told to pass over what there is: entries are in no cycles, and a pass over a million of
            # them stops the process for a second. What is frozen is still freed with its last reference.
            gc.freeze()
            self._database.turn()
        return snapshot

    def _moved(self) -> None:
        self._moved_at = time.monotonic()


def _whole_epochs(log: Sequence[Logged], after: int) -> Sequence[Logged]:
    """The changes of whole epochs that follow ``after``. None where those are not in the log any more, as after the
    database was set back to a backup, or where this release cannot read them."""
    if len(log) == DELTA_ROWS:
        log = [change for change in log if change.epoch < log[-1].epoch]
    if not log or log[0].epoch != after + 1 or any(change.kind not in _KINDS for change in log):
        return ()
    return log


def _apply(connection: Connection, old: Snapshot, log: Sequence[Logged]) -> Snapshot:
    wanted: dict[Kind, set[str]] = {kind: set() for kind in Kind}
    for change in log:
        wanted[Kind(change.kind)].add(change.subject)
    return old.replaced(log[-1].epoch, rows_of(connection, wanted))


def _forget(task: asyncio.Task[Snapshot]) -> None:
    """Nobody may be waiting for it any more."""
    if not task.cancelled():
        task.exception()


@asynccontextmanager
async def _beside(listener: EpochListener | None) -> AsyncIterator[None]:
    task = asyncio.create_task(listener.run()) if listener else None
    try:
        yield
    finally:
        if task is not None:
            task.cancel()
            await asyncio.wait({task})


__all__ = ["POLL_BESIDE_LISTENER_S", "POLL_S", "SnapshotSource"]
