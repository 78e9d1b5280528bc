"""From the spool on disk into the registry's usage ledger, in batches, each row at least once."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from lorry.errors import LorryError
from lorry.gateway.ports import UsageRow
from lorry.ids import TenantId
from lorry.registry.authz import Role, verify_tenant
from lorry.registry.usage.service import Usage

BATCH_BYTES = 256 * 1024
_log = logging.getLogger(__name__)


class Ledger(Protocol):
    """``lorry.registry.usage.service.UsageLedger``: writing a row twice changes nothing."""

    async def write(self, rows: Sequence[Usage]) -> None: ...


@dataclass(frozen=True, slots=True)
class _Billed:
    """Rows exist for authenticated callers alone, in a file that only this service writes."""

    tenant: TenantId
    role: str = Role.MEMBER


class LedgerDrain:
    """Remembers in ``{spool}.offset`` how far the ledger has it. Restarting in the middle repeats a batch at most."""

    def __init__(self, spool: Path, ledger: Ledger) -> None:
        self._spool = spool
        self._ledger = ledger
        self._mark = spool.with_name(spool.name + ".offset")

    async def drain(self) -> int:
        """Writes everything that is in the spool now; answers the number of rows. Raises what the ledger raises,
        and then the rows stay due."""
        count = 0
        while True:
            rows, end = await asyncio.to_thread(self._read)
            if end is None:
                return count
            await self._ledger.write(rows)
            await asyncio.to_thread(self._remember, end)
            count += len(rows)

    async def run(self, seconds: float = 1.0) -> None:
        """Drains until cancelled; a ledger that does not answer is asked again."""
        while True:
            try:
                await self.drain()
            except LorryError as error:
                _log.warning("usage stays in the spool for now: %s", error)
            await asyncio.sleep(seconds)

    def _read(self) -> tuple[list[Usage], int | None]:
        if not self._spool.exists():
            return [], None
        start = int(self._mark.read_text()) if self._mark.exists() else 0
        with self._spool.open("rb") as file:
            file.seek(start)
            data = file.read(BATCH_BYTES)
        whole = data.rfind(b"\n") + 1
        if whole == 0:
            return [], None
        return [row for line in data[:whole].splitlines() if (row := _usage(line)) is not None], start + whole

    def _remember(self, offset: int) -> None:
        fresh = self._mark.with_name(self._mark.name + ".new")
        fresh.write_text(str(offset))
        os.replace(fresh, self._mark)


def _usage(line: bytes) -> Usage | None:
    try:
        row = UsageRow(**json.loads(line))
    except (ValueError, TypeError):
        return None  # torn by a crash; its request never saw a StreamEnd
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
        started_at=datetime.fromtimestamp(row.started_at, UTC),
        ended_at=datetime.fromtimestamp(row.ended_at, UTC),
    )


__all__ = ["BATCH_BYTES", "Ledger", "LedgerDrain"]
