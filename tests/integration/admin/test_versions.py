"""From an upload to an immutable version, and every way in which it is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from lorry import errors
from lorry.adapters.manifest import file_sha256, files_digest, scan_directory
from lorry.adapters.store import open_store
from lorry.api.v1 import adapter_admin_pb2 as pb
from lorry.config import StoreConfig
from lorry.registry.adapters.uploads import Uploads
from tests.integration.admin.conftest import Client, Platform
from tests.unit.adapters import craft

JSON = "tenants/anna/adapters/json"


@pytest.fixture
async def anna(with_base: Platform) -> Client:
    client = await with_base.tenant("anna")
    await client.call("CreateAdapter", pb.CreateAdapterRequest(parent="tenants/anna", adapter_id="json"))
    return client


def version_request(upload: str, **fields: object) -> pb.CreateAdapterVersionRequest:
    values: dict[str, object] = {"parent": JSON, "upload": upload, "base": "models/tiny", **fields}
    return pb.CreateAdapterVersionRequest(**values)  # type: ignore[arg-type]  # the names are its own


async def version_count(client: Client) -> int:
    return len((await client.call("ListAdapterVersions", pb.ListAdapterVersionsRequest(parent=JSON))).versions)


async def test_ready(with_base: Platform, anna: Client, tmp_path: Path) -> None:
    folder = craft.write_adapter(tmp_path / "good")
    digest = files_digest(scan_directory(folder))
    upload = await anna.upload(JSON, folder)
    made = await anna.call("CreateAdapterVersion", version_request(upload, expected_sha256=digest))
    assert (made.name, made.version, made.sha256) == (f"{JSON}/versions/1", 1, digest)
    assert made.state == pb.ADAPTER_VERSION_STATE_READY
    assert (made.base, made.base_sha256, made.rank) == ("models/tiny", "1" * 64, 4)
    assert not [check for check in made.checks if check.outcome == "fail"]
    for file in made.files:
        stored = with_base.store_root / "adapters" / "sha256" / digest / file.path
        assert (stored.stat().st_size, file_sha256(stored)) == (file.size, file.sha256)
    assert await anna.call("GetAdapterVersion", pb.GetAdapterVersionRequest(name=made.name)) == made

    snapshot = await with_base.source.refresh()
    found = snapshot.resolve(snapshot.authenticate(anna.key, 0), JSON, digest, 0)
    assert found.ref is not None
    assert (found.ref.digest, found.ref.prefix) == (digest, f"adapters/sha256/{digest}")
    assert found.ref.files == scan_directory(folder)
    assert list(with_base.spool.iterdir()) == []  # the upload is gone


async def test_numbers_increase_and_bytes_are_stored_again(with_base: Platform, anna: Client, tmp_path: Path) -> None:
    folder = craft.write_adapter(tmp_path / "good")
    one = await anna.call("CreateAdapterVersion", version_request(await anna.upload(JSON, folder)))
    stored = with_base.store_root / "adapters" / "sha256" / one.sha256 / "adapter_config.json"
    stored.unlink()  # an equal upload is never short-cut, so it also repairs what was lost
    two = await anna.call("CreateAdapterVersion", version_request(await anna.upload(JSON, folder)))
    assert (one.version, two.version) == (1, 2)
    assert one.sha256 == two.sha256
    assert stored.exists()
    adapter = await anna.call("GetAdapter", pb.GetAdapterRequest(name=JSON))
    assert adapter.last_version == 2
    listed = await anna.call("ListAdapterVersions", pb.ListAdapterVersionsRequest(parent=JSON, page_size=1))
    assert [v.version for v in listed.versions] == [2]
    request = pb.ListAdapterVersionsRequest(parent=JSON, page_size=1, page_token=listed.next_page_token)
    rest = await anna.call("ListAdapterVersions", request)
    assert [v.version for v in rest.versions] == [1]
    assert rest.next_page_token == ""


async def test_rejected_is_recorded_with_its_report(with_base: Platform, anna: Client, tmp_path: Path) -> None:
    weights = craft.tensors()
    weights[next(iter(weights))][0, 0] = np.nan
    folder = craft.write_adapter(tmp_path / "nan", {**craft.CONFIG, "use_dora": True}, weights)
    request = version_request(await anna.upload(JSON, folder), request_id="r-1")
    error = await anna.error("CreateAdapterVersion", request)
    assert type(error) is errors.AdapterRefused
    assert error.metadata["version"] == "1"
    assert any("use_dora" in violation.field for violation in error.violations)
    row = await anna.call("GetAdapterVersion", pb.GetAdapterVersionRequest(name=f"{JSON}/versions/1"))
    assert row.state == pb.ADAPTER_VERSION_STATE_REJECTED
    assert "use_dora" in row.state_reason
    assert [check.message for check in row.checks if check.outcome == "fail"]
    assert not with_base.store_root.exists()  # nothing of it was stored
    snapshot = await with_base.source.refresh()
    caller = snapshot.authenticate(anna.key, 0)
    for name in (JSON, f"{JSON}/versions/1"):
        with pytest.raises(errors.VersionNotReady):
            snapshot.resolve(caller, name, "", 0)
    again = await anna.error("CreateAdapterVersion", request)
    assert (type(again), again.violations) == (errors.AdapterRefused, error.violations)
    assert await version_count(anna) == 1


async def test_validate_only_makes_nothing(with_base: Platform, anna: Client, tmp_path: Path) -> None:
    upload = await anna.upload(JSON, craft.write_adapter(tmp_path / "good"))
    found = await anna.call("CreateAdapterVersion", version_request(upload, validate_only=True))
    assert found.version == 0
    assert found.state == pb.ADAPTER_VERSION_STATE_UNSPECIFIED
    assert found.checks
    assert await version_count(anna) == 0
    assert not with_base.store_root.exists()
    bad = await anna.upload(JSON, craft.write_adapter(tmp_path / "bad", {**craft.CONFIG, "r": 0}))
    error = await anna.error("CreateAdapterVersion", version_request(bad, validate_only=True))
    assert type(error) is errors.AdapterRefused
    assert await version_count(anna) == 0
    made = await anna.call("CreateAdapterVersion", version_request(upload))  # the upload is still there
    assert made.sha256 == found.sha256


async def test_wrong_digest_makes_nothing(anna: Client, tmp_path: Path) -> None:
    upload = await anna.upload(JSON, craft.write_adapter(tmp_path / "good"))
    error = await anna.error("CreateAdapterVersion", version_request(upload, expected_sha256="0" * 64))
    assert type(error) is errors.AdapterDigestMismatch
    assert error.metadata["want"] == "0" * 64
    assert await version_count(anna) == 0


async def test_store_down_leaves_nothing_half_done(with_base: Platform, anna: Client, tmp_path: Path) -> None:
    upload = await anna.upload(JSON, craft.write_adapter(tmp_path / "good"))
    up = with_base.store.now
    down = StoreConfig(
        "s3://bucket", "http://127.0.0.1:9", "key", "secret", connect_timeout_s=0.2, read_timeout_s=0.2, attempts=1
    )
    with_base.store.now = open_store(down)
    request = version_request(upload, request_id="r-1")
    error = await anna.error("CreateAdapterVersion", request)
    assert type(error) is errors.ObjectStoreUnavailable
    assert error.retry_after_s is not None
    assert await version_count(anna) == 0
    with_base.store.now.close()
    with_base.store.now = up
    assert (await anna.call("CreateAdapterVersion", request)).version == 1


async def test_request_id(anna: Client, tmp_path: Path) -> None:
    folder = craft.write_adapter(tmp_path / "good")
    upload = await anna.upload(JSON, folder)
    request = version_request(upload, request_id="r-1")
    both = await asyncio.gather(*(anna.call("CreateAdapterVersion", request) for _ in range(2)))
    assert both[0] == both[1] == await anna.call("CreateAdapterVersion", request)
    assert await version_count(anna) == 1
    other = version_request(await anna.upload(JSON, folder), request_id="r-1")
    error = await anna.error("CreateAdapterVersion", other)
    assert type(error) is errors.InvalidRequest
    assert error.violations[0].field == "request_id"


async def test_chunks_resume(anna: Client, tmp_path: Path) -> None:
    upload = (await anna.call("CreateUpload", pb.CreateUploadRequest(parent=JSON))).name
    assert await anna.put(upload, "f.bin", 0, b"abc") == 3
    assert await anna.put(upload, "f.bin", 0, b"abc") == 3  # again
    assert await anna.put(upload, "f.bin", 1, b"bc") == 3  # a part of what is there
    for offset, data in ((5, b"x"), (0, b"xyz"), (2, b"cd")):
        with pytest.raises(errors.FailedPrecondition) as caught:
            await anna.put(upload, "f.bin", offset, data)
        assert caught.value.metadata == {"received_bytes": "3"}
    with pytest.raises(errors.InvalidRequest, match="sha256"):
        await anna.put(upload, "f.bin", 3, b"d", "0" * 64)
    assert await anna.put(upload, "f.bin", 3, b"d") == 4
    assert await anna.put(upload, "empty", 0, b"") == 0
    state = await anna.call("GetUpload", pb.GetUploadRequest(name=upload))
    assert {f.path: f.received_bytes for f in state.files} == {"empty": 0, "f.bin": 4}


async def test_unsafe_file_names(with_base: Platform, anna: Client) -> None:
    upload = (await anna.call("CreateUpload", pb.CreateUploadRequest(parent=JSON))).name
    for name in ("../x", "/etc/passwd", "a/b", "", ".", "..", ".hidden", "a..b", "a\n", "a\\b", "ä", "a" * 200):
        with pytest.raises(errors.InvalidRequest) as caught:
            await anna.put(upload, name, 0, b"x")
        assert caught.value.violations[0].field == "file", name
        found = [path for path in with_base.spool.rglob("*") if path.is_file() and path.name != "upload.json"]
        assert found == [], name


async def test_upload_caps(anna: Client) -> None:
    upload = (await anna.call("CreateUpload", pb.CreateUploadRequest(parent=JSON))).name
    with pytest.raises(errors.InvalidRequest, match="data"):
        await anna.put(upload, "a", 0, b"x" * 1025)
    with pytest.raises(errors.InvalidRequest, match="65536"):
        await anna.put(upload, "a", 64 << 10, b"x")
    for name in "abcd":
        await anna.put(upload, name, 0, b"x")
    with pytest.raises(errors.InvalidRequest, match="4 files"):
        await anna.put(upload, "e", 0, b"x")
    other = (await anna.call("CreateUpload", pb.CreateUploadRequest(parent=JSON))).name
    await anna.put(other, "readme", 0, b"x")
    with pytest.raises(errors.InvalidRequest, match="case"):
        await anna.put(other, "README", 0, b"x")
    for _ in range(14):
        await anna.call("CreateUpload", pb.CreateUploadRequest(parent=JSON))
    error = await anna.error("CreateUpload", pb.CreateUploadRequest(parent=JSON))
    assert type(error) is errors.QuotaExceeded


async def test_expired_uploads_go(tmp_path: Path, with_base: Platform, anna: Client) -> None:
    now = 0.0
    uploads = Uploads(tmp_path / "s", clock=lambda: now)
    snapshot = await with_base.source.refresh()
    tenant = snapshot.authenticate(anna.key, 0).tenant
    old = await uploads.create(tenant, "ad_1")
    now = old.expires_at
    with pytest.raises(errors.ResourceNotFound):
        await uploads.get(tenant, "ad_1", old.id)
    new = await uploads.create(tenant, "ad_1")
    assert [path.name for path in (tmp_path / "s").iterdir()] == [new.id]


async def test_uploads_belong_to_their_adapter(with_base: Platform, anna: Client, tmp_path: Path) -> None:
    upload = await anna.upload(JSON, craft.write_adapter(tmp_path / "good"))
    await anna.call("CreateAdapter", pb.CreateAdapterRequest(parent="tenants/anna", adapter_id="other"))
    bert = await with_base.tenant("bert")
    await bert.call("CreateAdapter", pb.CreateAdapterRequest(parent="tenants/bert", adapter_id="mine"))
    own = "tenants/bert/adapters/mine"
    stolen = f"{own}/uploads/{upload.rpartition('/')[2]}"
    with pytest.raises(errors.ResourceNotFound):
        await bert.put(stolen, "x", 0, b"x")
    for request in (
        version_request(stolen, parent=own),
        version_request(upload),
    ):
        assert type(await bert.error("CreateAdapterVersion", request)) is errors.ResourceNotFound
    crossed = version_request(upload, parent="tenants/anna/adapters/other")
    assert type(await anna.error("CreateAdapterVersion", crossed)) is errors.InvalidRequest
    relabelled = version_request(upload.replace("/json/", "/other/"), parent="tenants/anna/adapters/other")
    assert type(await anna.error("CreateAdapterVersion", relabelled)) is errors.ResourceNotFound


async def test_bad_requests(anna: Client, tmp_path: Path) -> None:
    upload = (await anna.call("CreateUpload", pb.CreateUploadRequest(parent=JSON))).name
    for request, field in (
        (version_request(upload), "upload"),
        (version_request(upload, base="models/other"), "base"),
        (version_request(upload, base="tiny"), "base"),
        (version_request("nonsense"), "upload"),
        (version_request(upload, parent=f"{JSON}/versions/1"), "parent"),
        (version_request(upload, request_id="a b"), "request_id"),
    ):
        error = await anna.error("CreateAdapterVersion", request)
        assert type(error) is errors.InvalidRequest
        assert error.violations[0].field == field
    await anna.put(upload, "x", 0, b"x")
    error = await anna.error("CreateAdapterVersion", version_request(upload, expected_sha256="xyz"))
    assert error.violations[0].field == "expected_sha256"


async def test_quarantine_and_alias(with_base: Platform, anna: Client, tmp_path: Path) -> None:
    folder = craft.write_adapter(tmp_path / "good")
    for _ in range(2):
        await anna.call("CreateAdapterVersion", version_request(await anna.upload(JSON, folder)))
    alias = await anna.call("SetAlias", pb.SetAliasRequest(parent=JSON, alias_id="prod", version=1))
    assert (alias.name, alias.version, alias.revision) == (f"{JSON}@prod", 1, 1)
    again = await anna.call("SetAlias", pb.SetAliasRequest(parent=JSON, alias_id="prod", version=1))
    assert again.revision == 1
    moved = await anna.call("SetAlias", pb.SetAliasRequest(parent=JSON, alias_id="prod", version=2))
    assert moved.revision == 2
    snapshot = await with_base.source.refresh()
    caller = snapshot.authenticate(anna.key, 0)
    assert snapshot.resolve(caller, f"{JSON}@prod", "", 0).version == 2

    request = pb.QuarantineAdapterVersionRequest(name=f"{JSON}/versions/2", reason="leaks")
    for _ in range(2):
        row = await anna.call("QuarantineAdapterVersion", request)
        assert (row.state, row.state_reason) == (pb.ADAPTER_VERSION_STATE_QUARANTINED, "leaks")
    snapshot = await with_base.source.refresh()
    for name in (f"{JSON}@prod", f"{JSON}/versions/2"):
        with pytest.raises(errors.AdapterQuarantined):
            snapshot.resolve(caller, name, "", 0)
    assert snapshot.resolve(caller, JSON, "", 0).version == 1
    error = await anna.error("SetAlias", pb.SetAliasRequest(parent=JSON, alias_id="prod", version=2))
    assert type(error) is errors.AdapterQuarantined
    for version in (0, 9, (1 << 64) - 1):
        missing = await anna.error("SetAlias", pb.SetAliasRequest(parent=JSON, alias_id="prod", version=version))
        assert type(missing) is errors.ResourceNotFound
