"""OWASP API7 (SSRF), traversal: whatever text comes where a name, an address or a file name is due is refused, and
before any file, any object, any bucket and any network is touched."""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask

from lorry import errors
from lorry.adapters.store import DirectoryStore, check_key
from lorry.api.v1 import adapter_admin_pb2 as a
from lorry.api.v1 import fleet_pb2 as f
from lorry.api.v1 import generate_pb2 as g
from lorry.api.v1 import tenant_admin_pb2 as t
from tests.security.calls import EMPTY_SHA256
from tests.security.conftest import Street
from tests.security.hostile import NAMES, URIS
from tests.security.watching import watched
from tests.security.world import Names

pytestmark = pytest.mark.asyncio(loop_scope="session")
PREFIX = "s3://bucket/tenant-a/"
Place = Callable[[Names, str], Any]


def _prompted(**fields: Any) -> g.GenerateRequest:
    return g.GenerateRequest(prompt="the lorry", stopping=g.StoppingParams(max_tokens=1), **fields)


def _upload(n: Names, text: str) -> str:
    return n.upload.rpartition("/")[0] + "/" + text


def _chunk(upload: str, file: str) -> a.PutChunkRequest:
    return a.PutChunkRequest(upload=upload, file=file, sha256=EMPTY_SHA256)


def _version(n: Names, **fields: str) -> a.CreateAdapterVersionRequest:
    given: dict[str, Any] = {"parent": n.adapter, "upload": n.upload, "base": n.base, **fields}
    return a.CreateAdapterVersionRequest(**given)


REFUSED: dict[str, tuple[str, str, Place]] = {
    "a tenant's name": ("admin", "TenantAdminService/CreateTenant", lambda n, x: t.CreateTenantRequest(tenant_id=x)),
    "a base's name": (
        "admin",
        "TenantAdminService/CreateBaseModel",
        lambda n, x: t.CreateBaseModelRequest(base_model_id=x, base_sha256="1" * 64, tokenizer_sha256="2" * 64),
    ),
    "an adapter's name": (
        "owner",
        "AdapterAdminService/CreateAdapter",
        lambda n, x: a.CreateAdapterRequest(parent=n.tenant, adapter_id=x),
    ),
    "an alias's name": (
        "owner",
        "AdapterAdminService/SetAlias",
        lambda n, x: a.SetAliasRequest(parent=n.adapter, alias_id=x, version=1),
    ),
    "a principal": (
        "owner",
        "TenantAdminService/CreateApiKey",
        lambda n, x: t.CreateApiKeyRequest(parent=n.tenant, principal=x, role=t.ROLE_MEMBER),
    ),
    "the tenant of a name": (
        "admin",
        "AdapterAdminService/GetAdapter",
        lambda n, x: a.GetAdapterRequest(name=f"tenants/{x}/adapters/json"),
    ),
    "the adapter of a name": (
        "owner",
        "AdapterAdminService/GetAdapter",
        lambda n, x: a.GetAdapterRequest(name=f"{n.tenant}/adapters/{x}"),
    ),
    "a whole name": ("owner", "AdapterAdminService/GetAdapter", lambda n, x: a.GetAdapterRequest(name=x)),
    "behind a name": (
        "owner",
        "AdapterAdminService/GetAdapter",
        lambda n, x: a.GetAdapterRequest(name=n.adapter + "/" + x),
    ),
    "the version of a name": (
        "owner",
        "AdapterAdminService/GetAdapterVersion",
        lambda n, x: a.GetAdapterVersionRequest(name=f"{n.adapter}/versions/{x}"),
    ),
    "the alias of a name": (
        "owner",
        "AdapterAdminService/GetAlias",
        lambda n, x: a.GetAliasRequest(name=f"{n.adapter}@{x}"),
    ),
    "an upload to read": (
        "owner",
        "AdapterAdminService/GetUpload",
        lambda n, x: a.GetUploadRequest(name=_upload(n, x)),
    ),
    "an upload to write": ("owner", "AdapterAdminService/PutChunk", lambda n, x: _chunk(_upload(n, x), "a.txt")),
    "an upload to watch": (
        "owner",
        "AdapterAdminService/WatchAdapterVersion",
        lambda n, x: a.WatchAdapterVersionRequest(name=_upload(n, x)),
    ),
    "an upload to register": (
        "owner",
        "AdapterAdminService/CreateAdapterVersion",
        lambda n, x: _version(n, upload=_upload(n, x)),
    ),
    "a base to register on": (
        "owner",
        "AdapterAdminService/CreateAdapterVersion",
        lambda n, x: _version(n, base=f"models/{x}"),
    ),
    "an expected digest": (
        "owner",
        "AdapterAdminService/CreateAdapterVersion",
        lambda n, x: a.CreateAdapterVersionRequest(parent=n.adapter, s3_uri=x, base=n.base, expected_sha256=x),
    ),
    "a request id": (
        "owner",
        "AdapterAdminService/CreateAdapter",
        lambda n, x: a.CreateAdapterRequest(parent=n.tenant, adapter_id="fine", request_id=x),
    ),
    "an update mask": (
        "owner",
        "AdapterAdminService/UpdateAdapter",
        lambda n, x: a.UpdateAdapterRequest(adapter=a.Adapter(name=n.adapter), update_mask=FieldMask(paths=[x])),
    ),
    "a page token": (
        "owner",
        "AdapterAdminService/ListAdapters",
        lambda n, x: a.ListAdaptersRequest(parent=n.tenant, page_token="%" + x),
    ),
    "a page token of audit": (
        "owner",
        "TenantAdminService/ListAuditEvents",
        lambda n, x: t.ListAuditEventsRequest(parent=n.tenant, page_token=encoded(x)),
    ),
    "a page token of usage": (
        "owner",
        "TenantAdminService/QueryUsage",
        lambda n, x: t.QueryUsageRequest(parent=n.tenant, page_token=encoded(x)),
    ),
    "a hash of audit": (
        "owner",
        "TenantAdminService/VerifyAudit",
        lambda n, x: t.VerifyAuditRequest(parent=n.tenant, known_hash=x, known_sequence=1),
    ),
    "a key": (
        "owner",
        "TenantAdminService/RevokeApiKey",
        lambda n, x: t.RevokeApiKeyRequest(name=f"{n.tenant}/apiKeys/{x}"),
    ),
    "a grant": (
        "admin",
        "TenantAdminService/RevokeGrant",
        lambda n, x: t.RevokeGrantRequest(name=f"{n.tenant}/grants/{x}"),
    ),
    "a quota": (
        "admin",
        "TenantAdminService/DeleteQuota",
        lambda n, x: t.DeleteQuotaRequest(name=f"{n.tenant}/quotas/{x}"),
    ),
    "a granted resource": (
        "admin",
        "TenantAdminService/CreateGrant",
        lambda n, x: t.CreateGrantRequest(parent=n.tenant, resource=f"{n.tenant}/adapters/{x}"),
    ),
    "a pinned version": (
        "owner",
        "TenantAdminService/SetPin",
        lambda n, x: t.SetPinRequest(parent=n.tenant, version=f"{n.adapter}/versions/{x}"),
    ),
    "a replica": ("admin", "FleetService/GetReplica", lambda n, x: f.GetReplicaRequest(name=f"replicas/{x}")),
    "an import prefix": (
        "admin",
        "TenantAdminService/UpdateTenant",
        lambda n, x: t.UpdateTenantRequest(
            tenant=t.Tenant(name=n.tenant, import_prefixes=[x]), update_mask=FieldMask(paths=["import_prefixes"])
        ),
    ),
    "a model": ("member", "GenerateService/Generate", lambda n, x: _prompted(model=x)),
    "the adapter of a model": (
        "member",
        "GenerateService/Generate",
        lambda n, x: _prompted(model=f"{n.tenant}/adapters/{x}"),
    ),
    "the base of a model": ("member", "GenerateService/GetModel", lambda n, x: g.GetModelRequest(name=f"models/{x}")),
    "a digest": ("member", "GenerateService/Generate", lambda n, x: _prompted(model=n.adapter, expected_sha256=x)),
    "a request's id": ("member", "GenerateService/Generate", lambda n, x: _prompted(model=n.adapter, request_id=x)),
    "a label's name": ("member", "GenerateService/Generate", lambda n, x: _prompted(model=n.adapter, labels={x: "v"})),
    "a role": (
        "member",
        "GenerateService/Generate",
        lambda n, x: g.GenerateRequest(model=n.adapter, chat=g.Chat(messages=[g.ChatMessage(role=x, content="a")])),
    ),
}
"""Where a name or an address is due, by what it is: who asks, of which RPC, with what."""
_PLAIN = {".", "..", ".hidden", "-rf", "a..b", "x."}
HARMLESS = {
    "a label's name": _PLAIN,
    "a request id": _PLAIN | {"con:", "C:x"},
    "a request's id": _PLAIN | {"con:", "C:x"},
}
"""By the grammar of that place: ids and labels are text in a database, never a path."""


def encoded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


@pytest.mark.parametrize("what", REFUSED)
async def test_hostile_names_are_refused_before_anything_is_touched(street: Street, what: str) -> None:
    here, anna = street.world, street.anna
    who, path, place = REFUSED[what]
    key = here.keys["admin" if who == "admin" else f"anna {who}"]
    before = await here.dump()
    for text in NAMES:
        if text in HARMLESS.get(what, ()):
            continue
        request = place(anna, text)
        with watched() as touched:
            found = await here.call(f"lorry.api.v1.{path}", request, key)
        assert found.code in ("INVALID_ARGUMENT", "NOT_FOUND"), (text, found)
        assert touched == [], text
    assert await here.dump() == before


async def test_hostile_file_names_are_refused_before_anything_is_touched(street: Street) -> None:
    here, anna = street.world, street.anna
    before = await here.dump()
    for text in NAMES:
        if text in ("a..b", "x."):
            continue
        with watched() as touched:
            found = await here.call(
                "lorry.api.v1.AdapterAdminService/PutChunk", _chunk(anna.upload, text), here.keys["anna owner"]
            )
        assert found.code == "INVALID_ARGUMENT", (text, found)
        assert touched == [], text
    assert await here.dump() == before


async def test_a_link_in_the_spool_leads_nowhere(street: Street, tmp_path: Path) -> None:
    """Nobody can put one there; were it there, nothing would be written through it, and nothing registered of it."""
    here = street.world
    owner = here.client("anna owner")
    upload = await owner.call("CreateUpload", a.CreateUploadRequest(parent=street.anna.adapter))
    aim = tmp_path / "aim"
    aim.touch()
    folder = here.folder / "spool" / upload.name.rpartition("/")[2] / "files"
    (folder / "adapter_config.json").symlink_to(aim)
    for name, data in (("adapter_config.json", b"{}"), ("note.txt", b"hello")):
        found = await here.call(
            "lorry.api.v1.AdapterAdminService/PutChunk",
            a.PutChunkRequest(upload=upload.name, file=name, data=data, sha256=sha256(data)),
            owner.key,
        )
        assert (found.code == "OK") == (name == "note.txt")
    request = _version(street.anna, upload=upload.name)
    request.validate_only = True
    assert (await here.call("lorry.api.v1.AdapterAdminService/CreateAdapterVersion", request, owner.key)).code != "OK"
    assert aim.read_bytes() == b""
    assert not [key for key in here.store.asked if "adapter_config" in key and upload.name.rpartition("/")[2] in key]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def test_only_the_tenants_own_prefixes_are_imported_from(street: Street) -> None:
    """By text alone: no bucket, no host and no folder of the spool is touched for any other address."""
    here, anna = street.world, street.anna
    mask = FieldMask(paths=["import_prefixes"])
    tenant = t.Tenant(name=anna.tenant, import_prefixes=[PREFIX])
    await here.client("admin").call("UpdateTenant", t.UpdateTenantRequest(tenant=tenant, update_mask=mask))
    path, key = "lorry.api.v1.AdapterAdminService/CreateAdapterVersion", here.keys["anna owner"]
    before = await here.dump()
    for at, uri in enumerate((*URIS, *NAMES)):
        request = a.CreateAdapterVersionRequest(parent=anna.adapter, s3_uri=uri, base=anna.base)
        request.validate_only = bool(at % 2)
        with watched() as touched:
            found = await here.call(path, request, key)
        assert found.code == "INVALID_ARGUMENT", (uri, found)
        assert touched == [], uri
    assert await here.dump() == before
    for good in (PREFIX, PREFIX + "json", PREFIX + "json/v3/"):
        request = a.CreateAdapterVersionRequest(parent=anna.adapter, s3_uri=good, base=anna.base, validate_only=True)
        assert (await here.call(path, request, key)).code == "OK"
    assert here.importer.asked == [
        ("bucket", "tenant-a/"),
        ("bucket", "tenant-a/json/"),
        ("bucket", "tenant-a/json/v3/"),
    ]
    bert = a.CreateAdapterVersionRequest(parent=street.bert.adapter, s3_uri=PREFIX, base=anna.base)
    assert (await here.call(path, bert, here.keys["bert owner"])).code == "INVALID_ARGUMENT"


FREE: dict[str, Callable[[Names, str], Any]] = {
    "a label": lambda n, x: _prompted(model=n.adapter, labels={"label": x[:128]}),
    "a sticky key": lambda n, x: _prompted(model=n.adapter, sticky_key=x[:128]),
    "a cache scope": lambda n, x: _prompted(model=n.adapter, cache_scope=x[:128]),
    "a prompt": lambda n, x: g.GenerateRequest(model=n.adapter, prompt=x, stopping=g.StoppingParams(max_tokens=1)),
    "a stop string": lambda n, x: g.GenerateRequest(
        model=n.adapter, prompt="a", stopping=g.StoppingParams(max_tokens=1, stop=[x[:200]])
    ),
}


@pytest.mark.parametrize("what", FREE)
async def test_free_text_opens_nothing(street: Street, what: str) -> None:
    here = street.world
    for text in NAMES:
        with watched() as touched:
            found = await here.call(
                "lorry.api.v1.GenerateService/Generate", FREE[what](street.anna, text), here.keys["anna member"]
            )
        assert found.code in ("OK", "INVALID_ARGUMENT"), (text, found)
        if what == "a label" and any(char in text for char in "\0\n\r\u2028"):
            assert found.code == "INVALID_ARGUMENT", text
        assert touched == [], text


async def test_hostile_paths_over_http(street: Street) -> None:
    """As they are and escaped, in the path, the query and the body."""
    here = street.world
    key = {"authorization": f"Bearer {here.keys['anna member']}"}
    ask = functools.partial(here.web.build_request, headers=key)
    await here.web.send(ask("GET", "/v1/models"))  # opens the connection
    for text in NAMES:
        escaped = urllib.request.pathname2url(text)
        asks = [
            ask("GET", f"/v1/models/{escaped}"),
            ask("GET", f"/v1/models/tenants/anna/adapters/{escaped}"),
            ask("GET", f"/{escaped}"),
            ask("GET", f"/v1/models/{urllib.request.pathname2url(escaped)}"),
            ask("GET", "/v1/models", params={text[:60]: "1"}),
            ask("GET", "/v1/models", params={"limit": text[:60]}),
            ask("POST", "/v1/completions", json={"model": text, "prompt": "a"}),
            ask("POST", "/v1/completions", json={"model": "models/tiny", "prompt": "a", text: 1}),
        ]
        for request in asks:
            if text in (".", "..") and request.method == "GET" and not request.url.query:
                continue  # clients resolve them before they send anything
            with watched() as touched:
                answer = await here.web.send(request)
            assert answer.status_code in (400, 404), (text, request.url)
            assert touched == [], (text, request.url)


@pytest.mark.parametrize("text", NAMES)
async def test_object_keys_stay_in_their_store(text: str, tmp_path: Path) -> None:
    """The last line of defence, behind names that never get so far."""
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "x").write_text("outside")
    if text in (".hidden", "-rf", "a..b", "x."):
        assert check_key(text) == text  # a plain name by itself
        return
    store = DirectoryStore(root)
    with watched() as touched:
        for step in (
            lambda: store.exists_sync(text),
            lambda: store.delete_sync(text),
            lambda: store.fetch_to_sync(text, root / "to", 1, "0" * 64),
        ):
            with pytest.raises(errors.InvalidRequest):
                step()
    assert touched == []
    with pytest.raises(errors.InvalidRequest):
        store.put_file_sync(text, tmp_path / "x")
    assert os.listdir(root) == []
    assert (tmp_path / "x").read_text() == "outside"
