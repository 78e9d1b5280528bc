"""From the spool on disk into the registry's usage ledger, in batches, each row at least once."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from lorry.errors import LorryError, Unavailable
from lorry.gateway.usage import read_row, spool_lock
from lorry.ids import TenantId
from lorry.registry.authz import Role, verify_tenant
from lorry.registry.usage.service import Usage

BATCH_BYTES = 256 * 1024
FILE_BYTES = 8 << 20
"""A spool that is larger and in the ledger to its end starts anew."""
_MARK_DIGITS = 18
_log = logging.getLogger(__name__)


T = TypeVar("T")


class Ledger(Protocol):
    """``lorry.registry.usage.service.UsageLedger``: writing a row twice changes nothing."""

    async def write(self, rows: Sequence[Usage]) -> None: ...


@dataclass(frozen=True, slots=True)
class _Billed:
    """Rows exist for authenticated callers alone, in a file that only this service writes."""

    tenant: TenantId
    role: str = Role.MEMBER


@dataclass(frozen=True, slots=True)
class _Due:
    """Lines that the ledger lacks, each with its row, and the offset behind the last of them."""

    lines: tuple[tuple[bytes, Usage], ...]
    end: int
    full: bool
    """More may be due."""


class _Taken(NamedTuple):
    taken: int
    full: bool


class LedgerDrain:
    """Remembers in ``{spool}.offset`` how far the ledger has it. Restarting in the middle repeats a batch at most;
    a mark that cannot be right begins again at the front, since rows may be written twice.

    A row that the ledger refuses is logged and put aside in ``{spool}.refused``. A spool above ``file_bytes`` that is
    in the ledger to its end is copied to ``{spool}.1``, in place of the copy before it, and emptied.
    """

    def __init__(self, spool: Path, ledger: Ledger, file_bytes: int = FILE_BYTES) -> None:
        self._spool = spool
        self._ledger = ledger
        self._file_bytes = file_bytes
        self._mark = spool.with_name(spool.name + ".offset")
        self._refused = spool.with_name(spool.name + ".refused")
        self._before = spool.with_name(spool.name + ".1")
        # One thread, so that what a cancelled pass left running is done before the next pass looks: a mark written
        # late, over that of a spool begun anew, would skip rows.
        self._files = ThreadPoolExecutor(1, thread_name_prefix="usage-drain")

    async def drain(self) -> int:
        """Writes everything that is in the spool now; answers the number of rows. Raises Unavailable where the ledger
        does not answer, and then the rows stay due."""
        count = 0
        while (due := await self._one()) is not None:
            count += due.taken
        return count

    async def run(self, seconds: float = 1.0) -> None:
        """Drains until cancelled, whatever one pass meets; what is due is tried again. Rows that come meanwhile wait
        for the next pass, as a transaction for one costs as much as for many."""
        while True:
            try:
                while (due := await self._one()) is not None and due.full:
                    pass
            except LorryError as error:
                _log.warning("usage stays in the spool for now: %s", error)
            except Exception:  # bills must outlive whatever one round meets
                _log.exception("usage stays in the spool for now")
            await asyncio.sleep(seconds)

    async def _one(self) -> _Taken | None:
        """One batch; None where none is due."""
        due: _Due | None = await self._on_files(self._read)
        taken = 0
        if due is not None:
            taken = await self._write(due.lines)
            await self._on_files(self._remember, due.end)
        if due is None or not due.full:
            await self._on_files(self._start_anew)
        return None if due is None else _Taken(taken, due.full)

    async def _write(self, lines: Sequence[tuple[bytes, Usage]]) -> int:
        """The number of rows that the ledger took."""
        try:
            await self._ledger.write([row for _, row in lines])
            return len(lines)
        except Unavailable:
            raise
        except Exception as error:  # which row of them the database does not take is found out below
            _log.warning("usage: a batch of %d rows was refused, each is tried alone: %s", len(lines), error)
        refused = []
        for line, row in lines:
            try:
                await self._ledger.write([row])
            except Unavailable:
                raise
            except Exception as error:  # kept in a file of its own, so that it holds up no other
                _log.error("usage %s is refused and put aside in %s: %s", row.ledger_id, self._refused, error)
                refused.append(line)
        await self._on_files(self._put_aside, refused)
        return len(lines) - len(refused)

    async def _on_files(self, act: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._files, act, *arguments)

    def _read(self) -> _Due | None:
        if not self._spool.exists():
            return None
        with self._spool.open("rb") as file, spool_lock(file.fileno()):
            start = self._start(file.fileno())
            file.seek(start)
            data = file.read(BATCH_BYTES)
            if b"\n" not in data:
                data += file.readline()
        whole = data.rfind(b"\n") + 1
        if whole == 0:
            return None
        found = ((line, _usage(line)) for line in data[:whole].splitlines())
        rows = tuple((line, row) for line, row in found if row is not None)
        return _Due(rows, start + whole, len(data) >= BATCH_BYTES)

    def _start(self, file: int) -> int:
        """The mark, where it can be one: the end of a line in this file."""
        try:
            mark = self._mark.read_bytes()
        except FileNotFoundError:
            return 0
        if mark.isdigit() and len(mark) <= _MARK_DIGITS:
            start = int(mark)
            if start == 0 or os.pread(file, 1, start - 1) == b"\n":
                return start
        _log.warning("usage: %s holds %r, no place in the spool; that is read from its front", self._mark, mark[:80])
        return 0

    def _start_anew(self) -> None:
        """Every step may be the last: until the file is emptied its rows are all in it, and then they are all in the
        ledger and in the copy."""
        if not self._spool.exists() or self._spool.stat().st_size <= self._file_bytes:
            return
        with self._spool.open("r+b") as file, spool_lock(file.fileno()):
            if self._start(file.fileno()) != os.fstat(file.fileno()).st_size:
                return  # rows came meanwhile
            with open(self._before, "wb", opener=_private) as copy:
                shutil.copyfileobj(file, copy)
                copy.flush()
                os.fsync(copy.fileno())
            self._remember(0)
            os.ftruncate(file.fileno(), 0)
            os.fsync(file.fileno())

    def _put_aside(self, lines: Sequence[bytes]) -> None:
        with open(self._refused, "ab", opener=_private) as file:
            file.writelines(line + b"\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())

    def _remember(self, offset: int) -> None:
        fresh = self._mark.with_name(self._mark.name + ".new")
        with open(fresh, "wb", opener=_private) as file:
            file.write(b"%d" % offset)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, self._mark)
        folder = os.open(self._mark.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _usage(line: bytes) -> Usage | None:
    """None for a line that is no row."""
    row = read_row(line)
    if row is None:
        return None
    try:
        started_at, ended_at = (datetime.fromtimestamp(at, UTC) for at in (row.started_at, row.ended_at))
        labels = dict(row.labels)
    except (ValueError, TypeError, OverflowError, OSError):
        return None
    tenant = TenantId(row.tenant)
    return Usage(
        ledger_id=row.ledger_id,
        tenant_id=verify_tenant(_Billed(tenant), tenant),
        key_id=row.key_id,
        request_id=row.request_id,
        adapter=row.adapter,
        version=row.version,
        adapter_sha256=row.adapter_sha256,
        base_sha256=row.base_sha256,
        prompt_tokens=row.prompt_tokens,
        output_tokens=row.output_tokens,
        cached_prompt_tokens=row.cached_prompt_tokens,
        outcome=row.outcome,
        started_at=started_at,
        ended_at=ended_at,
        principal=row.principal,
        alias=row.alias,
        canary=row.canary,
        labels=labels,
        replica=row.replica,
        queue_s=row.queue_s,
        ttft_s=row.ttft_s,
        decode_s=row.decode_s,
        charges=tuple(row.charges),
    )


__all__ = ["BATCH_BYTES", "FILE_BYTES", "Ledger", "LedgerDrain"]
