"""Which calls are told in the log, and by which words."""

from __future__ import annotations

import logging

import grpc
import grpc.aio
import pytest

from lorry.api.admin_log import CALLER, AdminLogInterceptor, changes
from lorry.api.status import ErrorInterceptor
from lorry.api.v1 import adapter_admin_pb2 as pb
from lorry.api.v1 import adapter_admin_pb2_grpc, fleet_pb2, generate_pb2, tenant_admin_pb2, user_admin_pb2
from lorry.errors import AlreadyExists, Unavailable
from lorry.logs import fields_of

FILES = (generate_pb2, pb, tenant_admin_pb2, user_admin_pb2, fleet_pb2)
READS = {
    "GetAdapter", "GetAdapterVersion", "GetAlias", "GetBaseModel", "GetReplica", "GetResidency", "GetTenant",
    "GetUpload", "GetUser", "ListAdapters", "ListAdapterVersions", "ListAliases", "ListAliasRevisions", "ListApiKeys",
    "ListAuditEvents", "ListBaseModels", "ListGrants", "ListPins", "ListPrices", "ListQuotas", "ListReplicas",
    "ListSessions", "ListEngineMemory", "ListRecentRequests", "ListResidency", "ListRollouts", "ListWaitingRequests",
    "ListTenants", "ListUsers", "ExportUsage", "QueryUsage", "VerifyAudit", "WatchAdapterVersion",
}  # fmt: skip
"""Of the admin services; every other method of theirs changes something."""


def test_every_method_that_changes_something_is_told() -> None:
    for file in FILES:
        for service in file.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                told = service.name != "GenerateService" and method.name not in READS
                assert changes(f"/{service.full_name}/{method.name}") is told, method.full_name
                assert not (told and method.server_streaming), "only unary calls are told"
    assert not changes("/grpc.health.v1.Health/Check")


class _Servicer(adapter_admin_pb2_grpc.AdapterAdminServiceServicer):
    async def CreateAdapter(self, request: pb.CreateAdapterRequest, context: object) -> pb.Adapter:
        CALLER.set(("acme", "ann"))
        if request.adapter_id == "there":
            raise AlreadyExists("name: there is one")
        if request.adapter_id == "down":
            raise Unavailable("the registry does not answer")
        if request.adapter_id == "broken":
            raise RuntimeError("inner words")
        return pb.Adapter(name="tenants/acme/adapters/new")

    async def DeleteAdapter(self, request: pb.DeleteAdapterRequest, context: object) -> pb.Adapter:
        return pb.Adapter()

    async def PutChunk(self, request: pb.PutChunkRequest, context: object) -> pb.PutChunkResponse:
        return pb.PutChunkResponse()

    async def GetAdapter(self, request: pb.GetAdapterRequest, context: object) -> pb.Adapter:
        return pb.Adapter()


async def test_a_line_for_each(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "lorry.admin")
    server = grpc.aio.server(interceptors=[ErrorInterceptor(), AdminLogInterceptor()])
    adapter_admin_pb2_grpc.add_AdapterAdminServiceServicer_to_server(
        _Servicer(),  # type: ignore[abstract]  # the other methods are not called
        server,
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = adapter_admin_pb2_grpc.AdapterAdminServiceStub(channel)
        for name in ("new", "there", "down", "broken"):
            request = pb.CreateAdapterRequest(parent="tenants/acme", adapter_id=name, request_id=f"r-{name}")
            try:
                await stub.CreateAdapter(request)
            except grpc.aio.AioRpcError:
                assert name != "new"
        await stub.DeleteAdapter(pb.DeleteAdapterRequest(name="any words\nat all"))
        await stub.PutChunk(pb.PutChunkRequest())
        await stub.GetAdapter(pb.GetAdapterRequest(name="tenants/acme/adapters/new"))
    await server.stop(None)
    found = [record for record in caplog.records if record.name == "lorry.admin"]
    assert [(record.levelname, record.getMessage()) for record in found] == [
        ("INFO", "admin CreateAdapter OK"),
        ("INFO", "admin CreateAdapter ALREADY_EXISTS"),
        ("WARNING", "admin CreateAdapter UNAVAILABLE"),
        ("ERROR", "admin CreateAdapter INTERNAL"),
        ("INFO", "admin DeleteAdapter OK"),
        ("DEBUG", "admin PutChunk OK"),
    ]
    told = dict(fields_of(found[0]))
    assert told.pop("seconds") >= 0
    assert told == {
        "method": "CreateAdapter", "resource": "tenants/acme", "request_id": "r-new", "tenant": "acme",
        "principal": "ann", "outcome": "OK", "code": "OK",
    }  # fmt: skip
    assert {"resource", "tenant"}.isdisjoint(fields_of(found[4])), "nobody said who, and it is no name"
