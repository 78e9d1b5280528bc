"""The blocking admin client."""

from __future__ import annotations

import time
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Timer
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc

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
from lorry.client.admin.aio import TIMEOUT_S, WATCH_S
from lorry.client.admin.push import Ask, Do, OnCheck, OnUpload, Progress, Push, Step, no_progress, no_upload
from lorry.client.blocking import BlockingCaller, Messages, Method, Pages, Sleep
from lorry.client.channels import Tls, open_channel
from lorry.client.prepared import Unary
from lorry.client.retry import Retry
from lorry.errors import LorryError

T = TypeVar("T")


class SyncAdminClient:
    """As ``AdminClient``, blocking. Safe to share between threads; not across a fork."""

    def __init__(
        self,
        address: str,
        api_key: str,
        credentials: grpc.ChannelCredentials | None = None,
        *,
        tls: Tls | None = None,
        retry: Retry = Retry(),  # noqa: B008  # frozen
        timeout_s: float | None = TIMEOUT_S,
        sleep: Sleep = time.sleep,
    ) -> None:
        self._channel = open_channel(address, credentials, tls)
        self.caller = BlockingCaller(self._channel, api_key, retry, sleep, timeout_s)

    create_adapter = Method(adapters.create_adapter)
    get_adapter = Method(adapters.get_adapter)
    list_adapters = Pages(adapters.list_adapters)
    update_adapter = Method(adapters.update_adapter)
    delete_adapter = Method(adapters.delete_adapter)
    undelete_adapter = Method(adapters.undelete_adapter)
    purge_adapter = Method(adapters.purge_adapter)

    create_upload = Method(uploads.create_upload)
    get_upload = Method(uploads.get_upload)
    put_chunk = Method(uploads.put_chunk)

    create_version = Method(versions.create_version)
    watch = Messages(versions.watch)
    get_version = Method(versions.get_version)
    list_versions = Pages(versions.list_versions)
    quarantine_version = Method(versions.quarantine_version)
    deprecate_version = Method(versions.deprecate_version)
    preload_version = Method(versions.preload_version)
    evict_version = Method(versions.evict_version)
    get_residency = Method(versions.get_residency)
    list_residency = Pages(versions.list_residency)

    set_alias = Method(aliases.set_alias)
    get_alias = Method(aliases.get_alias)
    list_aliases = Pages(aliases.list_aliases)
    list_alias_revisions = Pages(aliases.list_alias_revisions)
    set_canary = Method(aliases.set_canary)
    promote_canary = Method(aliases.promote_canary)
    rollback_alias = Method(aliases.rollback_alias)
    delete_alias = Method(aliases.delete_alias)

    create_tenant = Method(tenants.create_tenant)
    get_tenant = Method(tenants.get_tenant)
    list_tenants = Pages(tenants.list_tenants)
    update_tenant = Method(tenants.update_tenant)

    create_key = Method(keys.create_key)
    list_keys = Pages(keys.list_keys)
    rotate_key = Method(keys.rotate_key)
    revoke_key = Method(keys.revoke_key)

    create_base = Method(bases.create_base)
    get_base = Method(bases.get_base)
    list_bases = Pages(bases.list_bases)

    grant = Method(grants.grant)
    list_grants = Pages(grants.list_grants)
    revoke_grant = Method(grants.revoke_grant)
    set_pin = Method(grants.set_pin)
    list_pins = Pages(grants.list_pins)
    clear_pin = Method(grants.clear_pin)

    set_quota = Method(quotas.set_quota)
    list_quotas = Pages(quotas.list_quotas)
    delete_quota = Method(quotas.delete_quota)

    query_usage = Pages(records.query_usage)
    query_usage_pages = Pages(records.query_usage_pages)
    export_usage = Messages(records.export_usage)
    list_recent_requests = Method(records.list_recent_requests)
    list_audit_events = Pages(records.list_audit_events)
    verify_audit = Method(records.verify_audit)

    create_user = Method(users.create_user)
    get_user = Method(users.get_user)
    list_users = Pages(users.list_users)
    update_user = Method(users.update_user)
    set_user_password = Method(users.set_user_password)
    list_sessions = Pages(users.list_sessions)
    end_session = Method(users.end_session)

    set_price = Method(prices.set_price)
    list_prices = Pages(prices.list_prices)

    list_replicas = Pages(fleet.list_replicas)
    get_replica = Method(fleet.get_replica)
    drain_replica = Method(fleet.drain_replica)
    undrain_replica = Method(fleet.undrain_replica)
    list_engine_memory = Method(fleet.list_engine_memory)
    list_waiting_requests = Method(fleet.list_waiting_requests)
    list_rollouts = Pages(fleet.list_rollouts)

    def push(
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
        """As ``AdminClient.push``. The functions are called in the caller's thread."""
        push = Push(adapter, folder, base, upload, validate_only, progress, on_upload)
        call = self._drive(push.steps(self.caller.retry))
        return self.caller.unary(call) if on_check is None else self.create_watched(call, on_check)

    def create_watched(self, call: Unary[pb.AdapterVersion], on_check: OnCheck) -> pb.AdapterVersion:
        """Makes the call on an upload, and tells the rows of its validation meanwhile."""
        request: pb.CreateAdapterVersionRequest = call.request  # type: ignore[assignment]  # what the call is of
        rows = self.caller.open(versions.watch(request.upload), None)
        rows.initial_metadata()
        late = Timer(WATCH_S, rows.cancel)
        late.daemon = True

        def ended(_: Future[pb.AdapterVersion]) -> None:
            # The rows have all been sent by now; those of another process would never come.
            late.start()

        threads = ThreadPoolExecutor(1)
        try:
            making = threads.submit(self.caller.unary, call)
            making.add_done_callback(ended)
            try:
                for message in rows:
                    if message.HasField("check"):
                        on_check(message.check)
            except grpc.RpcError:
                pass  # what the call made or refused is its own to say
            return making.result()
        finally:
            late.cancel()
            rows.cancel()
            threads.shutdown(wait=False)  # after an interrupt, closing the channel ends the call

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _drive(self, steps: Generator[Step, Any, T]) -> T:
        found: Any = None
        try:
            step = steps.send(None)
            while True:
                try:
                    found = self._take(step)
                except LorryError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(found)
        except StopIteration as done:
            result: T = done.value
            return result

    def _take(self, step: Step) -> Any:
        match step:
            case Ask(call):
                return self.caller.unary(call)
            case Do(work):
                return work()
        self.caller.sleep(step.seconds)
        return None


__all__ = ["SyncAdminClient"]
