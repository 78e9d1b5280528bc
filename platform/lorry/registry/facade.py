"""One registry, opened: its services over one database."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from lorry.registry.adapters.candidates import Validator
from lorry.registry.adapters.service import AdapterService
from lorry.registry.adapters.uploads import UploadLimits, Uploads
from lorry.registry.adapters.versions import ObjectSink, VersionService
from lorry.registry.bases.service import BaseService
from lorry.registry.db.engine import Database, open_database
from lorry.registry.grants.service import GrantService
from lorry.registry.keys import Peppers
from lorry.registry.source import SnapshotSource
from lorry.registry.tenants.service import KeyService, TenantService
from lorry.registry.usage.service import UsageLedger


class Registry:
    """What a process does with the registry at ``url``, whose schema must be there (``bootstrap`` or
    ``migrate``). Belongs to one event loop. Every service raises Unavailable where the database does not
    answer."""

    def __init__(self, url: str, peppers: Peppers) -> None:
        self.database: Database = open_database(url)
        self.peppers = peppers
        self.tenants = TenantService(self.database)
        self.keys = KeyService(self.database, peppers)
        self.bases = BaseService(self.database)
        self.adapters = AdapterService(self.database)
        self.grants = GrantService(self.database)
        self.usage = UsageLedger(self.database)

    def versions(
        self,
        store: ObjectSink,
        validate: Validator,
        spool: Path,
        limits: UploadLimits | None = None,
        clock: Callable[[], float] = time.time,
    ) -> VersionService:
        """Uploads under ``spool`` (this process's own) become versions in ``store``."""
        return VersionService(self.database, Uploads(spool, limits or UploadLimits(), clock), store, validate)

    def snapshots(self, poll_seconds: float = 0.2) -> SnapshotSource:
        """Not started."""
        return SnapshotSource(self.database, self.peppers, poll_seconds)

    async def close(self) -> None:
        await self.database.close()


__all__ = ["Registry"]
