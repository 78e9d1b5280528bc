"""AdapterAdminService's methods on an adapter's life and on where its bytes are."""

from __future__ import annotations

from typing import Any

import grpc.aio

from lorry.api.v1 import adapter_admin_pb2 as pb
from lorry.api.v1 import adapter_admin_pb2_grpc as pb_grpc
from lorry.errors import InvalidRequest
from lorry.ids import AdapterScope, BaseDigest
from lorry.registry.adapters.lifecycle import LifecycleService
from lorry.registry.adapters.service import AdapterService
from lorry.registry.adapters.versions import VersionService
from lorry.registry.fleet.naming import LiveNames
from lorry.registry.fleet.observed import ObservedCopies
from lorry.registry.names import parse_adapter, parse_tenant, parse_version
from lorry.registry.paging import PageRequest
from lorry.registry.rights import require
from lorry_admin import live, messages
from lorry_admin.access import Access
from lorry_admin.engines import EngineReplicas, unserved

Context = grpc.aio.ServicerContext[Any, Any]
PRELOAD_S = 30.0
PRELOAD_MAX_S = 600.0


class LifecycleAdmin(pb_grpc.AdapterAdminServiceServicer):
    """A part of ``AdapterAdmin``, which sets the fields."""

    _access: Access
    _adapters: AdapterService
    _versions: VersionService
    _lifecycle: LifecycleService
    _engines: EngineReplicas
    _names: LiveNames
    _observed: ObservedCopies

    async def UpdateAdapter(self, request: pb.UpdateAdapterRequest, context: Context) -> pb.Adapter:
        caller = await self._access.caller(context)
        wanted = request.adapter
        name = parse_adapter("adapter.name", wanted.name)
        row = await self._adapters.update(
            caller, name, request.update_mask.paths, display_name=wanted.display_name, etag=wanted.etag
        )
        return messages.adapter(name.tenant, row)

    async def DeleteAdapter(self, request: pb.DeleteAdapterRequest, context: Context) -> pb.Adapter:
        caller = await self._access.caller(context)
        name = parse_adapter("name", request.name)
        return messages.adapter(name.tenant, await self._lifecycle.delete(caller, name, request.etag))

    async def UndeleteAdapter(self, request: pb.UndeleteAdapterRequest, context: Context) -> pb.Adapter:
        caller = await self._access.caller(context)
        name = parse_adapter("name", request.name)
        return messages.adapter(name.tenant, await self._lifecycle.undelete(caller, name, request.etag))

    async def PurgeAdapter(self, request: pb.PurgeAdapterRequest, context: Context) -> pb.PurgeReceipt:
        caller = await self._access.caller(context)
        name = parse_adapter("name", request.name)
        return messages.receipt(name.tenant, await self._lifecycle.purge(caller, name, request.etag))

    async def DeprecateAdapterVersion(
        self, request: pb.DeprecateAdapterVersionRequest, context: Context
    ) -> pb.AdapterVersion:
        caller = await self._access.caller(context)
        name = parse_version("name", request.name)
        return messages.version(name.bare, await self._versions.deprecate(caller, name, request.reason), full=True)

    async def PreloadAdapterVersion(self, request: pb.PreloadAdapterVersionRequest, context: Context) -> pb.Residency:
        caller = await self._access.caller(context)
        name = parse_version("name", request.name)
        wait_s = request.wait.ToNanoseconds() / 1e9 if request.HasField("wait") else PRELOAD_S
        if not 0 < wait_s <= PRELOAD_MAX_S:
            raise InvalidRequest.field("wait", f"{wait_s:g} s; use more than 0 and at most {PRELOAD_MAX_S:g}")
        ref, base = await self._versions.servable(caller, name)
        await self._engines.preload(base, ref, wait_s)
        found = await self._engines.whereabouts(base, ref)
        return messages.residency(name, found, running=caller.admin)

    async def EvictAdapterVersion(self, request: pb.EvictAdapterVersionRequest, context: Context) -> pb.Residency:
        caller = await self._access.caller(context)
        name = parse_version("name", request.name)
        ref, base = await self._versions.servable(caller, name)
        await self._engines.evict(base, ref)
        found = await self._engines.whereabouts(base, ref)
        return messages.residency(name, found, running=caller.admin)

    async def GetResidency(self, request: pb.GetResidencyRequest, context: Context) -> pb.Residency:
        caller = await self._access.caller(context)
        name = parse_version("name", request.name)
        ref, base = await self._versions.servable(caller, name, "read residency")
        found, own = await self._engines.whereabouts(base, ref), await self._engines.names()
        seen = await self._observed.of_version(ref.key, own)
        if not found and not seen and not await self._observed.serving(BaseDigest(base), own):
            raise unserved()
        return messages.residency(name, found, seen, running=caller.admin)

    async def ListResidency(self, request: pb.ListResidencyRequest, context: Context) -> pb.ListResidencyResponse:
        """Engines are asked for the copies of these adapters alone, and the registry too for those that other gateways
        saw, so that nothing of it tells of others' copies."""
        caller = await self._access.caller(context)
        require(caller, "list residency")
        wanted = PageRequest.of(request.page_size, request.page_token)
        page = await self._adapters.list(caller, parse_tenant("parent", request.parent), wanted)
        if not page.rows:
            return pb.ListResidencyResponse(next_page_token=page.next_token)
        scopes = [AdapterScope(row.id) for row in page.rows]
        copies = await self._engines.copies(scopes)
        seen = await self._observed.of_adapters(scopes, [replica for replica, _ in copies])
        keys = {one.adapter for _, rows in copies for one in rows} | {one.adapter for one in seen}
        found = live.residencies(copies, seen, await self._names.versions(keys), running=caller.admin)
        return pb.ListResidencyResponse(residencies=found, next_page_token=page.next_token)


__all__ = ["PRELOAD_MAX_S", "PRELOAD_S", "LifecycleAdmin"]
