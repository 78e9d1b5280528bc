"""Quotas over gRPC."""

from __future__ import annotations

import time
from typing import Any

from lorry import errors
from lorry.api.v1 import adapter_admin_pb2 as adapter_pb
from lorry.api.v1 import tenant_admin_pb2 as pb
from lorry.registry.leases.months import month_of
from tests.integration.admin.conftest import Platform

ANNA = "tenants/anna"
JSON = f"{ANNA}/adapters/json"
LIST = pb.ListQuotasRequest(parent=ANNA)


def put(adapter: str = "", etag: str = "", **limits: Any) -> pb.SetQuotaRequest:
    return pb.SetQuotaRequest(parent=ANNA, adapter=adapter, limits=pb.QuotaLimits(**limits), etag=etag)


async def test_a_quotas_life(platform: Platform) -> None:
    anna = await platform.tenant("anna")
    await anna.call("CreateAdapter", adapter_pb.CreateAdapterRequest(parent=ANNA, adapter_id="json"))
    admin = platform.admin
    made = await admin.call("SetQuota", put(etag="new", requests_per_minute=60, tokens_per_month=1000))
    assert made.name.startswith(f"{ANNA}/quotas/")
    assert (made.adapter, made.etag != "", made.HasField("use")) == ("", True, False)
    limits = made.limits
    assert (limits.requests_per_minute, limits.tokens_per_month) == (60, 1000)
    assert not any(limits.HasField(name) for name in ("concurrency", "queue_length", "max_tokens_cap"))
    own = await admin.call("SetQuota", put(JSON, concurrency=1, queue_length=0))
    assert own.limits.HasField("queue_length")
    whole, part = (await anna.call("ListQuotas", LIST)).quotas
    assert (whole.name, whole.adapter, whole.etag) == (made.name, "", made.etag)
    assert (whole.use.month, whole.use.tokens_used, whole.use.tokens_leased) == (month_of(time.time()), 0, 0)
    assert (part.adapter, part.HasField("use")) == (JSON, False)
    assert type(await admin.error("SetQuota", put(etag="new", concurrency=1))) is errors.AlreadyExists
    changed = await admin.call("SetQuota", put(etag=made.etag, concurrency=1))
    assert type(await admin.error("SetQuota", put(etag=made.etag, concurrency=2))) is errors.StaleEtag
    stale = pb.DeleteQuotaRequest(name=made.name, etag=made.etag)
    assert type(await admin.error("DeleteQuota", stale)) is errors.StaleEtag
    for _ in range(2):
        await admin.call("DeleteQuota", pb.DeleteQuotaRequest(name=made.name, etag=changed.etag))
    assert [one.name for one in (await anna.call("ListQuotas", LIST)).quotas] == [own.name]


async def test_who_may(platform: Platform) -> None:
    anna, bert = await platform.tenant("anna"), await platform.tenant("bert")
    made = await platform.admin.call("SetQuota", put(concurrency=1))
    assert type(await anna.error("SetQuota", put(concurrency=2))) is errors.RoleTooLow
    assert type(await anna.error("DeleteQuota", pb.DeleteQuotaRequest(name=made.name))) is errors.RoleTooLow
    assert type(await bert.error("ListQuotas", LIST)) is errors.ResourceNotFound
    member = await platform.tenant("anna", pb.ROLE_MEMBER)
    assert type(await member.error("ListQuotas", LIST)) is errors.RoleTooLow


async def test_what_cannot_be_set(platform: Platform) -> None:
    anna = await platform.tenant("anna")
    for request, field in (
        (put(), "limits"),
        (put(concurrency=0), "limits.concurrency"),
        (put(requests_per_minute=2**32 - 1), "limits.requests_per_minute"),
        (put(tokens_per_month=2**64 - 1), "limits.tokens_per_month"),
        (put(queue_length=3), "limits.queue_length"),
        (put("json", concurrency=1), "adapter"),
        (put(f"{JSON}/versions/1", concurrency=1), "adapter"),
        (pb.SetQuotaRequest(parent="anna", limits=pb.QuotaLimits(concurrency=1)), "parent"),
    ):
        error = await platform.admin.error("SetQuota", request)
        assert [one.field for one in error.violations] == [field]
    assert not (await anna.call("ListQuotas", LIST)).quotas


async def test_an_adapter_that_was_not_granted_is_not_there(platform: Platform) -> None:
    await platform.tenant("anna")
    bert = await platform.tenant("bert")
    await bert.call("CreateAdapter", adapter_pb.CreateAdapterRequest(parent="tenants/bert", adapter_id="secret"))
    for name in ("tenants/bert/adapters/secret", "tenants/bert/adapters/unknown"):
        error = await platform.admin.error("SetQuota", put(name, concurrency=1))
        assert type(error) is errors.ResourceNotFound
