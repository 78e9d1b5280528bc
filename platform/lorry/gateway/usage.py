"""Usage on disk: one JSON object a line, appended, with one fsync for all rows that wait together."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from lorry.errors import InternalError
from lorry.gateway.ports import UsageRow
from lorry.registry.leases.terms import Charge

_log = logging.getLogger(__name__)
_FIELDS = {field.name: None for field in fields(UsageRow)}
KEPT_ROWS = 10_000
"""Of rows that could not be written and that nobody was refused for: they go with a later group."""


class UsageSpool:
    """Appends rows to ``path`` (0600). Group commit: while one fsync runs, later rows gather for the next.

    A group that cannot be written whole is taken back: who waits for a row of it is refused, and those that were
    posted, whose tokens are at their clients, are kept for a later one. A process killed in the middle of a line leaves
    a torn one; the next row ends it, and readers skip it. Each group is written under ``spool_lock``, by a thread of
    its own: ends of streams wait for it, and must not wait for what else needs threads.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        self._closed = False
        self._rows: list[tuple[bytes, bool]] = []
        """Lines, and whether somebody waits for each."""
        self._kept: list[bytes] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._writer: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="usage-spool")
        self._thread.submit(int)  # it starts now, where a failure is seen, and not with the first bill
        self.commits = 0
        """Groups made durable so far."""

    async def record(self, row: UsageRow) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._add(row, waited=True)
        self._waiting.append(done)
        await done

    def post(self, row: UsageRow) -> None:
        self._add(row, waited=False)

    def _add(self, row: UsageRow, waited: bool) -> None:
        if self._closed:
            _log.error("usage %s came after the spool was closed and is lost", row.ledger_id)
            raise InternalError(f"usage: {row.ledger_id} cannot be written, the gateway has stopped")
        self._rows.append((json.dumps(_plain(row), separators=(",", ":")).encode() + b"\n", waited))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())

    async def close(self) -> None:
        """Returns when everything posted is durable, or its failure has been told. Idempotent; nothing is taken
        from its call on."""
        if self._closed:
            return
        self._closed = True
        if self._writer is not None:
            await self._writer
        if self._kept:
            await self._write_kept()
        self._thread.shutdown(wait=False)
        os.close(self._file)

    async def _write(self) -> None:
        while self._rows:
            rows, self._rows = self._rows, []
            waiting, self._waiting = self._waiting, []
            try:
                await self._durable(b"".join([*self._kept, *(line for line, _ in rows)]))
            except OSError as error:
                self._keep([line for line, waited in rows if not waited], len(waiting), error)
                for done in waiting:
                    if not done.done():
                        done.set_exception(InternalError(f"usage cannot be written: {error}; the answer is withheld"))
                continue
            self._kept = []
            self.commits += 1
            for done in waiting:
                if not done.done():
                    done.set_result(None)

    def _keep(self, posted: list[bytes], refused: int, error: OSError) -> None:
        self._kept += posted
        lost = max(0, len(self._kept) - KEPT_ROWS)
        del self._kept[:lost]
        told = "usage cannot be written, %d answers are withheld, %d rows of others kept for later, %d lost: %s"
        _log.error(told, refused, len(self._kept), lost, error)

    async def _write_kept(self) -> None:
        try:
            await self._durable(b"".join(self._kept))
        except OSError as error:
            _log.error("usage cannot be written, %d rows lost: %s", len(self._kept), error)

    async def _durable(self, data: bytes) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._commit, data)

    def _commit(self, data: bytes) -> None:
        with spool_lock(self._file):
            size = os.fstat(self._file).st_size
            if size and os.pread(self._file, 1, size - 1) != b"\n":
                data = b"\n" + data
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(self._file, view) :]
                os.fsync(self._file)
            except OSError:
                os.ftruncate(self._file, size)  # or the answers that were withheld would be billed
                raise


@contextmanager
def spool_lock(file: int) -> Iterator[None]:
    """Who holds it sees whole groups alone, durable ones, and may start the file anew. Between threads and processes,
    each with a descriptor of its own; it is not to be held across an await."""
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def read_rows(path: Path) -> Iterator[UsageRow]:
    """Every whole row; torn lines are skipped."""
    with path.open("rb") as file:
        for line in file:
            if (row := read_row(line)) is not None:
                yield row


def read_row(line: bytes) -> UsageRow | None:
    """A line's row, whichever release wrote it: what an older one did not know has its default, and what a newer one
    knows is left out. None for a line that is no row: torn by a crash, its request never saw a StreamEnd."""
    try:
        found = json.loads(line)
        row = UsageRow(**{name: found[name] for name in found.keys() & _FIELDS})
        return replace(row, charges=tuple(Charge(*map(str, one[: len(Charge._fields)])) for one in row.charges))
    except (ValueError, TypeError, AttributeError):
        return None


def _plain(row: UsageRow) -> dict[str, Any]:
    """As ``asdict``, which copies all that is in it."""
    return {name: getattr(row, name) for name in _FIELDS}


class MemoryUsage:
    """The sink without a disk, for tests and tools."""

    def __init__(self) -> None:
        self.rows: list[UsageRow] = []

    async def record(self, row: UsageRow) -> None:
        self.rows.append(row)

    def post(self, row: UsageRow) -> None:
        self.rows.append(row)


__all__ = ["MemoryUsage", "UsageSpool", "read_row", "read_rows", "spool_lock"]
