"""The asyncio admin client."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from pathlib import Path
from typing import Any, Self, TypeVar

import grpc
import grpc.aio

from lorry.api.v1 import adapter_admin_pb2 as pb
from lorry.client.admin import (
    adapters,
    aliases,
    bases,
    fleet,
    grants,
    keys,
    prices,
    quotas,
    records,
    tenants,
    uploads,
    users,
    versions,
)
from lorry.client.admin.push import Ask, Do, OnCheck, OnUpload, Progress, Push, Step, no_progress, no_upload
from lorry.client.awaited import AsyncCaller, AsyncMessages, AsyncMethod, AsyncPages, AsyncSleep
from lorry.client.channels import Tls, open_aio_channel
from lorry.client.prepared import Unary
from lorry.client.retry import Retry
from lorry.errors import LorryError

WATCH_S = 5.0
"""For the rows that are still on their way when the call has ended."""
TIMEOUT_S = 60.0
"""Of a call, unless told otherwise; those that work for long have none."""
T = TypeVar("T")


class AdminClient:
    """Every call of AdapterAdminService, TenantAdminService, UserAdminService and FleetService, for one event loop.

    Raises leaves of ``lorry.errors``. Lists are iterators that ask for pages as they go. What may be done twice is
    tried again as ``retry`` says; what may not (a key that is made, a step back of an alias) never is. ``tls`` and
    ``credentials`` as ``lorry.client.Client``'s.
    """

    def __init__(
        self,
        address: str,
        api_key: str,
        credentials: grpc.ChannelCredentials | None = None,
        *,
        tls: Tls | None = None,
        retry: Retry = Retry(),  # noqa: B008  # frozen
        timeout_s: float | None = TIMEOUT_S,
        sleep: AsyncSleep = asyncio.sleep,
    ) -> None:
        self._channel = open_aio_channel(address, credentials, tls)
        self.caller = AsyncCaller(self._channel, api_key, retry, sleep, timeout_s)

    create_adapter = AsyncMethod(adapters.create_adapter)
    get_adapter = AsyncMethod(adapters.get_adapter)
    list_adapters = AsyncPages(adapters.list_adapters)
    update_adapter = AsyncMethod(adapters.update_adapter)
    delete_adapter = AsyncMethod(adapters.delete_adapter)
    undelete_adapter = AsyncMethod(adapters.undelete_adapter)
    purge_adapter = AsyncMethod(adapters.purge_adapter)

    create_upload = AsyncMethod(uploads.create_upload)
    get_upload = AsyncMethod(uploads.get_upload)
    put_chunk = AsyncMethod(uploads.put_chunk)

    create_version = AsyncMethod(versions.create_version)
    watch = AsyncMessages(versions.watch)
    get_version = AsyncMethod(versions.get_version)
    list_versions = AsyncPages(versions.list_versions)
    quarantine_version = AsyncMethod(versions.quarantine_version)
    deprecate_version = AsyncMethod(versions.deprecate_version)
    preload_version = AsyncMethod(versions.preload_version)
    evict_version = AsyncMethod(versions.evict_version)
    get_residency = AsyncMethod(versions.get_residency)
    list_residency = AsyncPages(versions.list_residency)

    set_alias = AsyncMethod(aliases.set_alias)
    get_alias = AsyncMethod(aliases.get_alias)
    list_aliases = AsyncPages(aliases.list_aliases)
    list_alias_revisions = AsyncPages(aliases.list_alias_revisions)
    set_canary = AsyncMethod(aliases.set_canary)
    promote_canary = AsyncMethod(aliases.promote_canary)
    rollback_alias = AsyncMethod(aliases.rollback_alias)
    delete_alias = AsyncMethod(aliases.delete_alias)

    create_tenant = AsyncMethod(tenants.create_tenant)
    get_tenant = AsyncMethod(tenants.get_tenant)
    list_tenants = AsyncPages(tenants.list_tenants)
    update_tenant = AsyncMethod(tenants.update_tenant)

    create_key = AsyncMethod(keys.create_key)
    list_keys = AsyncPages(keys.list_keys)
    rotate_key = AsyncMethod(keys.rotate_key)
    revoke_key = AsyncMethod(keys.revoke_key)

    create_base = AsyncMethod(bases.create_base)
    get_base = AsyncMethod(bases.get_base)
    list_bases = AsyncPages(bases.list_bases)

    grant = AsyncMethod(grants.grant)
    list_grants = AsyncPages(grants.list_grants)
    revoke_grant = AsyncMethod(grants.revoke_grant)
    set_pin = AsyncMethod(grants.set_pin)
    list_pins = AsyncPages(grants.list_pins)
    clear_pin = AsyncMethod(grants.clear_pin)

    set_quota = AsyncMethod(quotas.set_quota)
    list_quotas = AsyncPages(quotas.list_quotas)
    delete_quota = AsyncMethod(quotas.delete_quota)

    query_usage = AsyncPages(records.query_usage)
    query_usage_pages = AsyncPages(records.query_usage_pages)
    export_usage = AsyncMessages(records.export_usage)
    list_recent_requests = AsyncMethod(records.list_recent_requests)
    list_audit_events = AsyncPages(records.list_audit_events)
    verify_audit = AsyncMethod(records.verify_audit)

    create_user = AsyncMethod(users.create_user)
    get_user = AsyncMethod(users.get_user)
    list_users = AsyncPages(users.list_users)
    update_user = AsyncMethod(users.update_user)
    set_user_password = AsyncMethod(users.set_user_password)
    list_sessions = AsyncPages(users.list_sessions)
    end_session = AsyncMethod(users.end_session)

    set_price = AsyncMethod(prices.set_price)
    list_prices = AsyncPages(prices.list_prices)

    list_replicas = AsyncPages(fleet.list_replicas)
    get_replica = AsyncMethod(fleet.get_replica)
    drain_replica = AsyncMethod(fleet.drain_replica)
    undrain_replica = AsyncMethod(fleet.undrain_replica)
    list_engine_memory = AsyncMethod(fleet.list_engine_memory)
    list_waiting_requests = AsyncMethod(fleet.list_waiting_requests)
    list_rollouts = AsyncPages(fleet.list_rollouts)

    async def push(
        self,
        adapter: str,
        folder: Path,
        base: str,
        progress: Progress = no_progress,
        on_check: OnCheck | None = None,
        *,
        upload: str = "",
        validate_only: bool = False,
        on_upload: OnUpload = no_upload,
    ) -> pb.AdapterVersion:
        """Uploads the folder's files in chunks and registers them as the next version of ``adapter``
        (`tenants/{t}/adapters/{a}`) on ``base`` (`models/{base}`).

        ``on_check`` is told every row of the validation as it becomes known. A connection that breaks is made again
        and the upload goes on where it was; so it does with the ``upload`` that an earlier call told ``on_upload``
        (it is in the error's metadata too). Raises AdapterRefused with the report's violations.
        """
        push = Push(adapter, folder, base, upload, validate_only, progress, on_upload)
        call = await self._drive(push.steps(self.caller.retry))
        return await (self.caller.unary(call) if on_check is None else self.create_watched(call, on_check))

    async def create_watched(self, call: Unary[pb.AdapterVersion], on_check: OnCheck) -> pb.AdapterVersion:
        """Makes the call on an upload, and tells the rows of its validation meanwhile."""
        request: pb.CreateAdapterVersionRequest = call.request  # type: ignore[assignment]  # what the call is of
        rows = self.caller.open(versions.watch(request.upload), None)
        await rows.initial_metadata()
        told = asyncio.create_task(_tell(rows, on_check))
        try:
            return await self.caller.unary(call)
        finally:
            # What the call made or refused is its own to say; the rows have all been sent by now.
            await asyncio.wait([told], timeout=WATCH_S)
            rows.cancel()
            await asyncio.gather(told, return_exceptions=True)

    async def close(self) -> None:
        await self._channel.close(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _drive(self, steps: Generator[Step, Any, T]) -> T:
        found: Any = None
        try:
            step = steps.send(None)
            while True:
                try:
                    found = await self._take(step)
                except LorryError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(found)
        except StopIteration as done:
            result: T = done.value
            return result

    async def _take(self, step: Step) -> Any:
        match step:
            case Ask(call):
                return await self.caller.unary(call)
            case Do(work):
                return await asyncio.to_thread(work)
        await self.caller.sleep(step.seconds)
        return None


async def _tell(rows: Any, on_check: OnCheck) -> None:
    async for message in rows:
        if message.HasField("check"):
            on_check(message.check)


__all__ = ["TIMEOUT_S", "WATCH_S", "AdminClient"]
