"""One registry, opened: its services over one database."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from lorry.registry.accounts.passwords import PasswordParams
from lorry.registry.accounts.service import Accounts
from lorry.registry.adapters.candidates import Validator
from lorry.registry.adapters.content import ObjectBin
from lorry.registry.adapters.following import Holders, PurgeFollower, Texts
from lorry.registry.adapters.lifecycle import LifecycleService, Replicas
from lorry.registry.adapters.service import AdapterService
from lorry.registry.adapters.uploads import UploadLimits, Uploads
from lorry.registry.adapters.versions import Importer, ObjectSink, VersionService
from lorry.registry.aliases.service import AliasService
from lorry.registry.audit.service import AuditService
from lorry.registry.bases.service import BaseService
from lorry.registry.db.engine import Database, open_database
from lorry.registry.fleet.naming import LiveNames
from lorry.registry.fleet.observed import ObservedCopies
from lorry.registry.fleet.service import FleetService
from lorry.registry.grants.service import GrantService
from lorry.registry.keys import Peppers
from lorry.registry.leases.service import LeaseService
from lorry.registry.limits.service import QuotaService
from lorry.registry.prices.service import PriceService
from lorry.registry.source import POLL_BESIDE_LISTENER_S, POLL_S, SnapshotSource
from lorry.registry.tenants.service import KeyService, TenantService
from lorry.registry.usage.outcomes import OutcomeCounts
from lorry.registry.usage.reports import UsageReports
from lorry.registry.usage.service import UsageLedger


class Registry:
    """What a process does with the registry at ``url``, whose schema must be there (``bootstrap`` or
    ``migrate``). Belongs to one event loop. Every service raises Unavailable where the database does not
    answer."""

    def __init__(
        self,
        url: str,
        peppers: Peppers,
        passwords: PasswordParams | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``passwords``: what their hashes cost, None for what production wants; ``clock``: Unix seconds, of
        accounts."""
        self.database: Database = open_database(url)
        self.peppers = peppers
        self.tenants = TenantService(self.database)
        self.keys = KeyService(self.database, peppers)
        self.accounts = Accounts(self.database, peppers, passwords, clock)
        self.bases = BaseService(self.database)
        self.adapters = AdapterService(self.database)
        self.aliases = AliasService(self.database)
        self.grants = GrantService(self.database)
        self.quotas = QuotaService(self.database)
        self.prices = PriceService(self.database)
        self.leases = LeaseService(self.database)
        self.fleet = FleetService(self.database)
        self.live_names = LiveNames(self.database)
        self.observed = ObservedCopies(self.database)
        self.usage = UsageLedger(self.database)
        self.outcomes = OutcomeCounts(self.database)
        self.usage_reports = UsageReports(self.database)
        self.audit = AuditService(self.database)

    def versions(
        self,
        store: ObjectSink,
        validate: Validator,
        spool: Path,
        limits: UploadLimits | None = None,
        clock: Callable[[], float] = time.time,
        importer: Importer | None = None,
    ) -> VersionService:
        """Uploads under ``spool`` (this process's own), and what ``importer`` fetches, become versions in ``store``."""
        uploads = Uploads(spool, limits or UploadLimits(), clock)
        return VersionService(self.database, uploads, store, validate, importer)

    def lifecycle(self, objects: ObjectBin, replicas: Replicas) -> LifecycleService:
        """``objects`` is the store that versions lie in, ``replicas`` every engine that may have some of them."""
        return LifecycleService(self.database, objects, replicas)

    def purges(self, engines: Holders, texts: Texts | None = None) -> PurgeFollower:
        """``engines``: those behind this process; ``texts``: its gateway's."""
        return PurgeFollower(self.database, engines, texts)

    def snapshots(self, poll_seconds: float = POLL_S) -> SnapshotSource:
        """Not started. ``poll_seconds`` is for SQLite; PostgreSQL announces changes, and is polled once a second."""
        announced = self.database.engine.dialect.name == "postgresql"
        return SnapshotSource(self.database, self.peppers, POLL_BESIDE_LISTENER_S if announced else poll_seconds)

    async def close(self) -> None:
        await self.database.close()


__all__ = ["Registry"]
