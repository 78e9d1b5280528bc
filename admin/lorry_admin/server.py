"""Puts the admin services on a server beside the gateway's, or on one of their own."""

from __future__ import annotations

from typing import Any

import grpc.aio

from lorry.api.v1 import (
    adapter_admin_pb2,
    adapter_admin_pb2_grpc,
    fleet_pb2,
    fleet_pb2_grpc,
    tenant_admin_pb2,
    tenant_admin_pb2_grpc,
    user_admin_pb2,
    user_admin_pb2_grpc,
)
from lorry.registry import Registry, SnapshotSource
from lorry.registry.adapters.lifecycle import LifecycleService
from lorry.registry.adapters.versions import VersionService
from lorry.registry.fleet.desk import Desk
from lorry_admin.access import Access
from lorry_admin.adapters import AdapterAdmin
from lorry_admin.engines import EngineReplicas
from lorry_admin.fleet import FleetAdmin
from lorry_admin.live import NoDesk
from lorry_admin.tenants import TenantAdmin
from lorry_admin.users import UserAdmin

ADMIN_SERVICES: tuple[str, ...] = (
    adapter_admin_pb2.DESCRIPTOR.services_by_name["AdapterAdminService"].full_name,
    tenant_admin_pb2.DESCRIPTOR.services_by_name["TenantAdminService"].full_name,
    user_admin_pb2.DESCRIPTOR.services_by_name["UserAdminService"].full_name,
    fleet_pb2.DESCRIPTOR.services_by_name["FleetService"].full_name,
)
"""Full names, for reflection and health."""


def add_admin_services(
    server: grpc.aio.Server,
    registry: Registry,
    source: SnapshotSource,
    versions: VersionService,
    lifecycle: LifecycleService,
    engines: EngineReplicas,
    desk: Desk | None = None,
) -> None:
    """``server`` must have ``lorry.api.status.ErrorInterceptor`` among its interceptors, and take messages of
    the chunk size plus a little (gRPC's default of 4 MiB does). ``source`` may be the gateway's. ``desk`` is: None
    knows of no request."""
    access, desk = Access(source), desk or NoDesk()
    target: Any = server
    adapter_admin_pb2_grpc.add_AdapterAdminServiceServicer_to_server(
        AdapterAdmin(access, registry, versions, lifecycle, engines), target
    )
    tenant_admin_pb2_grpc.add_TenantAdminServiceServicer_to_server(TenantAdmin(access, registry, desk), target)
    user_admin_pb2_grpc.add_UserAdminServiceServicer_to_server(UserAdmin(access, registry), target)
    fleet_pb2_grpc.add_FleetServiceServicer_to_server(
        FleetAdmin(access, registry.fleet, registry.aliases, registry.live_names, engines, desk), target
    )


__all__ = ["ADMIN_SERVICES", "add_admin_services"]
