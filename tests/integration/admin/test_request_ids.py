"""``request_id``: whatever makes or moves something takes one, and a repeat is answered what the first was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message_factory import GetMessageClass

from lorry.api.v1 import adapter_admin_pb2 as adapter_pb
from lorry.api.v1 import fleet_pb2 as fleet_pb
from lorry.api.v1 import tenant_admin_pb2 as pb
from lorry.api.v1 import user_admin_pb2 as user_pb
from lorry.errors import InvalidRequest
from tests.integration.admin.conftest import BASE_SHA256, TOKENIZER_SHA256, Client, Platform
from tests.unit.adapters.craft import BASE_CONFIG, tensors, write_adapter

READS = ("Get", "List", "Watch", "Query", "Export", "Verify")
WITHOUT = {
    "UpdateTenant": "sets fields to values",
    "RevokeApiKey": "ends what it names; the first time stays",
    "RevokeGrant": "ends what it names; the first time stays",
    "SetPin": "one pin for an adapter, set to what it says",
    "ClearPin": "no change without one",
    "SetQuota": "one quota for an adapter, set to what it says",
    "DeleteQuota": "no change without one",
    "UpdateAdapter": "sets fields to values",
    "DeleteAdapter": "a state of what it names",
    "UndeleteAdapter": "a state of what it names",
    "PurgeAdapter": "a state of what it names; answers the receipt again",
    "PutChunk": "offset and sha256 say what is where; what is there already is accepted",
    "QuarantineAdapterVersion": "a state of what it names",
    "DeprecateAdapterVersion": "a state of what it names",
    "PreloadAdapterVersion": "no row; what is loaded stays loaded",
    "EvictAdapterVersion": "no row; what is gone stays gone",
    "DrainReplica": "a state of what it names",
    "UndrainReplica": "a state of what it names",
    "CreateUser": "ALREADY_EXISTS the second time: the password that was made is told once, so nobody could repeat it",
    "UpdateUser": "sets fields to values",
    "SetUserPassword": "the last one holds; one that was made is told once",
    "EndSession": "a state of what it names",
    "SetPrice": "one price for a day, set to what it says",
}
"""Changes that have no ``request_id``, and why a second one of them is as good as one."""

JSON = "tenants/anna/adapters/json"
HEAD = f"{JSON}@head"


def methods() -> dict[str, Any]:
    """Every method of the services of administrators, by name."""
    services = [
        service for file in (pb, adapter_pb, fleet_pb, user_pb) for service in file.DESCRIPTOR.services_by_name.values()
    ]
    return {method.name: method for service in services for method in service.methods}


def test_every_change_takes_a_request_id_or_needs_none() -> None:
    takes = {name for name, method in methods().items() if "request_id" in method.input_type.fields_by_name}
    changes = {name for name in methods() if not name.startswith(READS)}
    assert takes | set(WITHOUT) == changes
    assert not takes & set(WITHOUT)
    assert {name for name in changes if name.startswith(("Create", "Rotate"))} <= takes | {"CreateUser"}
    assert takes == set(REQUESTS), "each is tried below"


REQUESTS: dict[str, dict[str, Any]] = {
    "CreateTenant": {"tenant_id": "bert"},
    "CreateApiKey": {"parent": "tenants/anna", "principal": "robot", "role": pb.ROLE_MEMBER},
    "RotateApiKey": {"overlap": Duration(seconds=60)},
    "CreateBaseModel": {
        "base_model_id": "other",
        "base_sha256": BASE_SHA256,
        "tokenizer_sha256": TOKENIZER_SHA256,
        "config_json": json.dumps(BASE_CONFIG),
    },
    "CreateGrant": {"parent": "tenants/anna", "resource": "models/tiny"},
    "CreateAdapter": {"parent": "tenants/anna", "adapter_id": "csv"},
    "CreateUpload": {"parent": JSON},
    "CreateAdapterVersion": {"parent": JSON, "base": "models/tiny"},
    "SetAlias": {"parent": JSON, "alias_id": "head", "version": 2},
    "SetCanary": {"name": HEAD, "version": 2, "permille": 10},
    "PromoteCanary": {"name": HEAD},
    "RollbackAlias": {"name": HEAD},
    "DeleteAlias": {"name": HEAD},
}
"""A good request of each method, beside what ``prepared`` puts in."""
OTHER: dict[str, dict[str, Any]] = {
    "CreateTenant": {"tenant_id": "carl"},
    "CreateApiKey": {"principal": "other"},
    "RotateApiKey": {"overlap": Duration(seconds=61)},
    "CreateBaseModel": {"base_model_id": "another"},
    "CreateGrant": {"resource": JSON},
    "CreateAdapter": {"adapter_id": "tsv"},
    "CreateUpload": {"parent": "tenants/anna/adapters/xml"},
    "CreateAdapterVersion": {"expected_sha256": "0" * 64},
    "SetAlias": {"version": 1},
    "SetCanary": {"permille": 11},
    "PromoteCanary": {"etag": "x"},
    "RollbackAlias": {"etag": "x"},
    "DeleteAlias": {"etag": "x"},
}
"""What makes it another request."""


async def prepared(platform: Platform, tmp_path: Path, name: str) -> dict[str, Any]:
    """An adapter of two versions and an alias, and the fields of the request."""
    await two_versions(platform, tmp_path)
    return await fields_of(platform.admin, tmp_path, name)


async def two_versions(platform: Platform, tmp_path: Path) -> None:
    admin = platform.admin
    await platform.tenant("anna")
    for adapter in ("json", "xml"):
        await admin.call("CreateAdapter", adapter_pb.CreateAdapterRequest(parent="tenants/anna", adapter_id=adapter))
    for seed in (1, 2):
        folder = write_adapter(tmp_path / str(seed), weights=tensors(seed=seed))
        upload = await admin.upload(JSON, folder)
        await admin.call(
            "CreateAdapterVersion", _request("CreateAdapterVersion", upload=upload, **REQUESTS["CreateAdapterVersion"])
        )


async def fields_of(admin: Client, tmp_path: Path, name: str) -> dict[str, Any]:
    """Of its request, and what that needs beside the versions: an alias of the first, or one that was moved."""
    await admin.call("SetAlias", adapter_pb.SetAliasRequest(parent=JSON, alias_id="head", version=1))
    fields = dict(REQUESTS[name])
    if name == "RotateApiKey":
        made = await admin.call(
            "CreateApiKey", _request("CreateApiKey", **REQUESTS["CreateApiKey"] | {"principal": "old"})
        )
        fields["name"] = made.api_key.name
    if name == "CreateAdapterVersion":
        fields["upload"] = await admin.upload(JSON, write_adapter(tmp_path / "new", weights=tensors(seed=3)))
    if name == "PromoteCanary":
        await admin.call("SetCanary", adapter_pb.SetCanaryRequest(name=HEAD, version=2, permille=500))
    if name == "RollbackAlias":
        for version in (2, 1, 2):
            await admin.call("SetAlias", adapter_pb.SetAliasRequest(parent=JSON, alias_id="head", version=version))
    return fields


def _request(method: str, /, **fields: Any) -> Any:
    return GetMessageClass(methods()[method].input_type)(**fields)


async def test_a_repeat_changes_nothing_and_is_answered_the_same(with_base: Platform, tmp_path: Path) -> None:
    """All with one id, as those of different methods do not meet."""
    admin = with_base.admin
    await two_versions(with_base, tmp_path)
    for name in REQUESTS:
        fields = await fields_of(admin, tmp_path, name)
        request = _request(name, **fields, request_id="r-1")
        first = await admin.call(name, request)
        before = (await with_base.source.refresh()).epoch
        events = await _events(admin)
        again = await admin.call(name, request)
        if name in ("CreateApiKey", "RotateApiKey"):
            assert first.text
            assert again.text == "", "a secret is told once"
            first.ClearField("text")
        assert again == first, name
        assert (await with_base.source.refresh()).epoch == before, name
        assert await _events(admin) == events, name
        error = await admin.error(name, _request(name, **fields | OTHER[name], request_id="r-1"))
        assert type(error) is InvalidRequest, name
        assert error.violations[0].field == "request_id"


async def _events(admin: Client) -> int:
    """Of both tenants' audit chains."""
    count = 0
    for tenant in ("anna", "platform"):
        count += (await admin.call("VerifyAudit", pb.VerifyAuditRequest(parent=f"tenants/{tenant}"))).events
    return count


async def test_a_repeated_move_is_answered_as_it_was_after_later_ones(with_base: Platform, tmp_path: Path) -> None:
    """A rollback that is sent again by a client that heard nothing must not go back twice."""
    await prepared(with_base, tmp_path, "RollbackAlias")
    back = adapter_pb.RollbackAliasRequest(name=HEAD, request_id="r-1")
    first = await with_base.admin.call("RollbackAlias", back)
    await with_base.admin.call("SetAlias", adapter_pb.SetAliasRequest(parent=JSON, alias_id="head", version=2))
    assert await with_base.admin.call("RollbackAlias", back) == first
    now = await with_base.admin.call("GetAlias", adapter_pb.GetAliasRequest(name=HEAD))
    assert (now.version, now.revision) == (2, first.revision + 1)


async def test_a_repeated_rotation_leaves_the_key_that_it_made(with_base: Platform, tmp_path: Path) -> None:
    fields = await prepared(with_base, tmp_path, "RotateApiKey")
    request = pb.RotateApiKeyRequest(**fields, request_id="r-1")
    made = await with_base.admin.call("RotateApiKey", request)
    assert (await with_base.admin.call("RotateApiKey", request)).api_key == made.api_key
    caller = (await with_base.source.refresh()).authenticate(made.text, 0.0)
    assert caller.principal == "old"
    keys = (await with_base.admin.call("ListApiKeys", pb.ListApiKeysRequest(parent="tenants/anna"))).api_keys
    assert len([key for key in keys if key.principal == "old"]) == 2


async def test_request_ids_of_tenants_do_not_meet(with_base: Platform, tmp_path: Path) -> None:
    """Who guesses another's is answered nothing of it."""
    await prepared(with_base, tmp_path, "CreateUpload")
    anna, bert = await with_base.tenant("anna"), await with_base.tenant("bert")
    first = await anna.call("CreateUpload", adapter_pb.CreateUploadRequest(parent=JSON, request_id="r-1"))
    await bert.call("CreateAdapter", adapter_pb.CreateAdapterRequest(parent="tenants/bert", adapter_id="json"))
    other = adapter_pb.CreateUploadRequest(parent="tenants/bert/adapters/json", request_id="r-1")
    assert (await bert.call("CreateUpload", other)).name.rpartition("/")[2] != first.name.rpartition("/")[2]
