"""Rollouts over gRPC: what became of each canary, for whom."""

from __future__ import annotations

import itertools
from typing import Any

from sqlalchemy import select

from lorry import errors
from lorry.api.v1 import adapter_admin_pb2 as adapter_pb
from lorry.api.v1 import fleet_pb2 as pb
from lorry.api.v1 import tenant_admin_pb2 as tenant_pb
from lorry.ids import TenantId
from lorry.registry import PageRequest, verify_tenant
from lorry.registry.aliases import repository
from lorry.registry.db.tables import Adapter
from tests.integration.admin.conftest import Client, Platform
from tests.integration.admin.test_aliases import JSON, PROD, anna, canary, point
from tests.unit.registry.test_authz import Proof

__all__ = ["anna"]

State = pb.RolloutState


def ask(**fields: Any) -> pb.ListRolloutsRequest:
    return pb.ListRolloutsRequest(**{"parent": JSON, **fields})


async def five(anna: Client) -> None:
    """Four of ``prod``, each with another end, the last as the first was; then one of ``next``."""
    await anna.call("SetAlias", point(1))
    await anna.call("SetCanary", canary(2, 250))
    await anna.call("SetCanary", canary(2, 500))
    await anna.call("SetCanary", canary(3, 10))
    await anna.call("RollbackAlias", adapter_pb.RollbackAliasRequest(name=PROD))
    await anna.call("SetCanary", canary(2, 999))
    await anna.call("PromoteCanary", adapter_pb.PromoteCanaryRequest(name=PROD))
    await anna.call("SetCanary", canary(3, 1))
    await anna.call("DeleteAlias", adapter_pb.DeleteAliasRequest(name=PROD))
    await anna.call("SetAlias", point(1, alias="next"))
    for permille in (7, 70):
        await anna.call("SetCanary", adapter_pb.SetCanaryRequest(name=f"{JSON}@next", version=2, permille=permille))


async def test_every_canary_from_its_start_to_its_end(anna: Client) -> None:
    assert not (await anna.call("ListRollouts", ask())).rollouts
    await five(anna)
    found = (await anna.call("ListRollouts", ask())).rollouts
    assert [(one.alias, one.version, one.canary_version, one.canary_permille, one.state) for one in found] == [
        (f"{JSON}@next", 1, 2, 70, State.ROLLOUT_STATE_RUNNING),
        (PROD, 2, 3, 1, State.ROLLOUT_STATE_REPLACED),
        (PROD, 1, 2, 999, State.ROLLOUT_STATE_PROMOTED),
        (PROD, 1, 3, 10, State.ROLLOUT_STATE_ROLLED_BACK),
        (PROD, 1, 2, 500, State.ROLLOUT_STATE_REPLACED),
    ]
    (key,) = (await anna.call("ListApiKeys", tenant_pb.ListApiKeysRequest(parent="tenants/anna"))).api_keys
    assert {one.actor for one in found} == {key.name.rpartition("/")[2]}
    assert len({one.name for one in found}) == 5
    assert all(one.name.startswith(f"{JSON}/rollouts/ro_") for one in found)
    assert [one.HasField("end_time") for one in found] == [False, True, True, True, True]
    for newer, older in itertools.pairwise(found[1:]):
        assert newer.begin_time.ToDatetime() >= older.end_time.ToDatetime() > older.begin_time.ToDatetime()


async def test_pages_and_one_alias(anna: Client) -> None:
    await five(anna)
    every = list((await anna.call("ListRollouts", ask())).rollouts)
    of_prod = list((await anna.call("ListRollouts", ask(alias_id="prod"))).rollouts)
    assert of_prod == every[1:], "though it is deleted"
    for alias, wanted in (("", every), ("prod", of_prod), ("next", every[:1])):
        seen, token = [], ""
        while True:
            page = await anna.call("ListRollouts", ask(alias_id=alias, page_size=2, page_token=token))
            assert 0 < len(page.rollouts) <= 2
            seen += page.rollouts
            if not (token := page.next_page_token):
                break
        assert seen == wanted


async def test_what_is_refused(with_base: Platform, anna: Client) -> None:
    await five(anna)
    bad: list[tuple[pb.ListRolloutsRequest, str]] = [
        (ask(parent=PROD), "parent"),
        (ask(parent=""), "parent"),
        (ask(alias_id="A B"), "alias_id"),
        (ask(page_size=-1), "page_size"),
        (ask(page_token="?"), "page_token"),
    ]
    for request, field in bad:
        error = await anna.error("ListRollouts", request)
        assert type(error) is errors.InvalidRequest, request
        assert error.violations[0].field == field
    assert type(await anna.error("ListRollouts", ask(alias_id="never"))) is errors.ResourceNotFound
    await anna.call("DeleteAdapter", adapter_pb.DeleteAdapterRequest(name=JSON))
    assert type(await anna.error("ListRollouts", ask())) is errors.FailedPrecondition


async def test_for_nobody_else(with_base: Platform, anna: Client) -> None:
    """A grant is for generating. Another's adapter is as unknown as one that is not there."""
    await five(anna)
    bert = await with_base.tenant("bert")
    grant = tenant_pb.CreateGrantRequest(parent="tenants/bert", resource=JSON)
    await with_base.admin.call("CreateGrant", grant)
    unknown = await bert.error("ListRollouts", ask(parent="tenants/bert/adapters/none"))
    assert type(unknown) is errors.ResourceNotFound
    for request in (ask(), ask(alias_id="prod"), ask(parent="tenants/nobody/adapters/json")):
        theirs = await bert.error("ListRollouts", request)
        assert (type(theirs), theirs.message) == (type(unknown), unknown.message)
    viewer = await with_base.tenant("anna", tenant_pb.ROLE_VIEWER)
    for reader in (viewer, with_base.admin):
        assert len((await reader.call("ListRollouts", ask())).rollouts) == 5
    member = await with_base.tenant("anna", tenant_pb.ROLE_MEMBER)
    assert type(await member.error("ListRollouts", ask())) is errors.RoleTooLow


async def test_the_query_itself_asks_whose_they_are(with_base: Platform, anna: Client) -> None:
    await five(anna)
    await with_base.tenant("bert")
    found: dict[str, int] = {}
    for name in ("anna", "bert"):
        uid = TenantId(
            (await with_base.admin.call("GetTenant", tenant_pb.GetTenantRequest(name=f"tenants/{name}"))).uid
        )
        async with with_base.registry.database.read() as session:
            adapter = (await session.execute(select(Adapter).where(Adapter.name == "json"))).scalar_one()
            tenant = verify_tenant(Proof(uid, "owner"), uid)
            rows = await repository.list_rollouts(session, tenant, adapter.id, "", PageRequest.of(0, ""))
            found[name] = len(rows)
    assert found == {"anna": 5, "bert": 0}
