"""What cannot be applied as it is meant is refused when it is registered, by name, and never answers."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from lorry.api.v1 import adapter_admin_pb2 as adapters
from lorry.errors import AdapterRefused, FailedPrecondition, InvalidRequest, ResourceNotFound
from tests.e2e.bad import KINDS, SCRIPT, SHARED, write_bad, write_source
from tests.e2e.conftest import in_the_sandbox
from tests.e2e.world import BASE, Tenant, Tracer, World, ask

pytestmark = pytest.mark.asyncio(loop_scope="package")

PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION


@dataclass(frozen=True)
class Shelf:
    """A tenant's adapter whose first version is good; each kind becomes a version after it."""

    tenant: Tenant
    good: Tracer
    source: Path


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def shelf(world: World, tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    source = tmp_path_factory.mktemp("source") / "good"
    write_source(source, 21)
    tenant = await world.tenant()
    return Shelf(tenant, await world.tracer(tenant, 22), source)


async def refused(world: World, adapter: str, bad: Path) -> AdapterRefused:
    """By the sandbox, as it is registered."""
    with in_the_sandbox(), pytest.raises(AdapterRefused) as caught:
        await world.admin.push(adapter, bad, BASE)
    return caught.value


async def test_every_shared_kind_is_tried() -> None:
    assert set(SHARED) == set(SCRIPT["KINDS"])


@pytest.mark.usefixtures("sandboxed")
async def test_the_source_of_the_bad_ones_is_good(world: World, tmp_path: Path) -> None:
    token = write_source(tmp_path / "good", 20)
    tenant = await world.tenant()
    adapter = await world.adapter(tenant)
    version = await world.admin.push(adapter, tmp_path / "good", BASE)
    await world.settle()
    answer = await world.stream(tenant.key, ask(adapter))
    assert set(answer.ids) == {token}
    assert answer.end.model.sha256 == version.sha256


@pytest.mark.parametrize("kind", KINDS)
async def test_refused_at_registration_and_it_yields_no_token(
    world: World, shelf: Shelf, tmp_path: Path, kind: str
) -> None:
    """... while the good version before it stays the newest that answers."""
    adapter, key = shelf.good.adapter, shelf.tenant.key
    write_bad(kind, tmp_path / "bad", shelf.source)
    error = await refused(world, adapter, tmp_path / "bad")
    said = error.message + " ".join(f"{v.field} {v.description}" for v in error.violations)
    assert not [word for word in KINDS[kind] if word not in said], said
    assert error.violations
    assert error.grpc_code == "INVALID_ARGUMENT"
    got = await world.admin_call(world.adapter_admin.GetAdapter, adapters.GetAdapterRequest(name=adapter))
    number = got.last_version
    request = adapters.GetAdapterVersionRequest(name=f"{adapter}/versions/{number}")
    version = await world.admin_call(world.adapter_admin.GetAdapterVersion, request)
    assert version.state == adapters.ADAPTER_VERSION_STATE_REJECTED
    assert version.state_reason
    assert version.state_reason in error.message
    assert [check for check in version.checks if check.outcome == "fail"]
    await world.settle()
    await world.right(key, adapter, shelf.good)
    wanted = ask(f"{adapter}/versions/{number}")
    await world.refused(key, wanted, PRECONDITION, "VERSION_NOT_READY", adapter, str(number))


async def test_a_name_with_nothing_but_a_rejected_version_answers_nothing(world: World, tmp_path: Path) -> None:
    """Not the base, and not another adapter of the tenant."""
    write_source(tmp_path / "good", 21)
    write_bad("no-match", tmp_path / "bad", tmp_path / "good")
    tenant = await world.tenant()
    adapter = await world.adapter(tenant)
    await refused(world, adapter, tmp_path / "bad")
    await world.settle()
    for name in (adapter, f"{adapter}/versions/1"):
        await world.refused(tenant.key, ask(name), PRECONDITION, "VERSION_NOT_READY", adapter)


async def test_the_number_of_a_rejected_version_stays_used(world: World, tmp_path: Path) -> None:
    write_source(tmp_path / "good", 23)
    write_bad("nan", tmp_path / "bad", tmp_path / "good")
    tenant = await world.tenant()
    adapter = await world.adapter(tenant)
    await refused(world, adapter, tmp_path / "bad")
    tracer = await world.push(adapter, 24)
    assert tracer.version == 2
    await world.settle()
    await world.right(tenant.key, adapter, tracer)


async def test_validate_only_says_the_same_and_makes_no_version(world: World, tmp_path: Path) -> None:
    write_source(tmp_path / "good", 25)
    tenant = await world.tenant()
    adapter = await world.adapter(tenant)
    upload = await world.admin_call(world.adapter_admin.CreateUpload, adapters.CreateUploadRequest(parent=adapter))
    request = adapters.CreateAdapterVersionRequest(parent=adapter, upload=upload.name, base=BASE, validate_only=True)
    with pytest.raises(InvalidRequest):
        await world.admin_call(world.adapter_admin.CreateAdapterVersion, request)
    listed = await world.admin_call(
        world.adapter_admin.ListAdapterVersions, adapters.ListAdapterVersionsRequest(parent=adapter)
    )
    assert not listed.versions


async def test_an_upload_whose_digest_differs_makes_no_version(world: World, tmp_path: Path) -> None:
    tenant = await world.tenant()
    adapter = await world.adapter(tenant)
    tracer = await world.push(adapter, 26)
    upload = await world.admin_call(world.adapter_admin.CreateUpload, adapters.CreateUploadRequest(parent=adapter))
    write_source(tmp_path / "good", 27)
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        data = (tmp_path / "good" / file).read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        chunk = adapters.PutChunkRequest(upload=upload.name, file=file, data=data, sha256=digest)
        await world.admin_call(world.adapter_admin.PutChunk, chunk)
    request = adapters.CreateAdapterVersionRequest(
        parent=adapter, upload=upload.name, base=BASE, expected_sha256=tracer.sha256
    )
    with pytest.raises(FailedPrecondition, match="sha256"):
        await world.admin_call(world.adapter_admin.CreateAdapterVersion, request)
    got = await world.admin_call(world.adapter_admin.GetAdapter, adapters.GetAdapterRequest(name=adapter))
    assert got.last_version == 1


async def test_a_version_on_a_base_that_is_not_registered_is_refused(world: World, tmp_path: Path) -> None:
    write_source(tmp_path / "good", 28)
    adapter = await world.adapter(await world.tenant())
    with pytest.raises((ResourceNotFound, InvalidRequest), match="models/other"):
        await world.admin.push(adapter, tmp_path / "good", "models/other")
