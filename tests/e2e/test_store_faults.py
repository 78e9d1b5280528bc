"""The object store goes, loses an object or serves other bytes: said as it is, for that adapter alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import boto3
import grpc
import pytest
from botocore.config import Config

from lorry.api.v1 import generate_pb2 as pb
from lorry.errors import ObjectStoreUnavailable
from tests.e2e.world import Tracer, World, ask

pytestmark = pytest.mark.asyncio(loop_scope="package")

PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


class Bucket:
    """The platform's own bucket, reached from outside with the store's own configuration."""

    def __init__(self, world: World) -> None:
        assert world.platform.s3 is not None
        config = world.platform.s3.config()
        self._name = config.url.removeprefix("s3://").strip("/")
        self._s3 = boto3.client(
            "s3",
            endpoint_url=config.endpoint_url,
            aws_access_key_id=config.access_key,
            aws_secret_access_key=config.secret_key,
            region_name=config.region,
            config=Config(retries={"max_attempts": 2}, connect_timeout=2, read_timeout=5),
        )

    def weights_of(self, tracer: Tracer) -> str:
        """The key of the version's safetensors file: objects lie under the version's digest."""
        listed = self._s3.list_objects_v2(Bucket=self._name).get("Contents", [])
        keys = [entry["Key"] for entry in listed if tracer.sha256 in entry["Key"]]
        assert len(keys) == 2, listed
        return next(key for key in keys if key.endswith(".safetensors"))

    def get(self, key: str) -> bytes:
        body: bytes = self._s3.get_object(Bucket=self._name, Key=key)["Body"].read()
        return body

    def put(self, key: str, data: bytes) -> None:
        self._s3.put_object(Bucket=self._name, Key=key, Body=data)

    def delete(self, key: str) -> None:
        self._s3.delete_object(Bucket=self._name, Key=key)

    def close(self) -> None:
        self._s3.close()


@pytest.fixture
def bucket(world: World) -> Iterator[Bucket]:
    made = Bucket(world)
    yield made
    made.close()


@asynccontextmanager
async def store_down(world: World) -> AsyncIterator[None]:
    """The S3 server's process is gone inside the block and runs again after it."""
    s3 = world.platform.s3
    assert s3 is not None
    await asyncio.to_thread(s3.stop)
    try:
        assert not s3.running
        yield
    finally:
        await asyncio.to_thread(s3.start)


async def test_a_stopped_store_fails_what_needs_it_alone_and_comes_back(world: World) -> None:
    """Cold adapters and new versions are refused with a hint; what is loaded is served; then all is as before."""
    tenant = await world.tenant()
    cold = [await world.tracer(tenant, number) for number in range(1, 4)]
    warm = [await world.tracer(tenant, number) for number in range(4, 8)]
    adapter = await world.adapter(tenant)
    await world.settle()
    for tracer in warm:
        await world.right(tenant.key, tracer.adapter, tracer)
    async with store_down(world):
        error = await world.refused(tenant.key, ask(cold[0].adapter), UNAVAILABLE, "OBJECT_STORE_UNAVAILABLE", "store")
        assert error.retry_after_s is not None
        assert error.retry_after_s > 0
        refused, served = await asyncio.gather(
            asyncio.gather(*(world.stream(tenant.key, ask(tracer.adapter)) for tracer in cold for _ in range(4))),
            asyncio.gather(*(world.right(tenant.key, tracer.adapter, tracer) for tracer in warm)),
        )
        for answer in refused:
            assert (answer.code, answer.messages) == (UNAVAILABLE, [])
            assert answer.retry_after_s
        for answer in served:  # one more than the device has room for: some come from the host
            assert answer.timings.adapter_tier in (pb.ADAPTER_TIER_DEVICE, pb.ADAPTER_TIER_HOST)
        with pytest.raises(ObjectStoreUnavailable, match="store") as caught:
            await world.push(adapter, 8)
        assert caught.value.retry_after_s
        await world.settle()
        await world.refused(tenant.key, ask(adapter), PRECONDITION, "VERSION_NOT_READY", adapter)
    for tracer in cold:
        await _until_served(world, tenant.key, tracer)
    pushed = await world.push(adapter, 9)
    await world.settle()
    await world.right(tenant.key, adapter, pushed)
    await world.serves_on()


async def test_a_missing_object_is_said_and_its_return_is_seen(world: World, bucket: Bucket) -> None:
    tenant = await world.tenant()
    tracer = await world.tracer(tenant, 10)
    await world.settle()
    key = bucket.weights_of(tracer)
    data = bucket.get(key)
    bucket.delete(key)
    await world.refused(tenant.key, ask(tracer.adapter), PRECONDITION, "ADAPTER_OBJECT_MISSING", "adapter_model")
    bucket.put(key, data)
    await _until_served(world, tenant.key, tracer)


@pytest.mark.parametrize("damage", ["one bit", "cut", "longer", "empty", "another adapter's"])
async def test_other_bytes_are_never_served(world: World, bucket: Bucket, damage: str) -> None:
    tenant = await world.tenant()
    tracer, other = await world.tracer(tenant, 11), await world.tracer(tenant, 12)
    await world.settle()
    key = bucket.weights_of(tracer)
    data = bucket.get(key)
    assert len(data) == len(bucket.get(bucket.weights_of(other)))
    flipped = bytearray(data)
    flipped[-2] ^= 1
    bytes_by_damage: dict[str, bytes] = {
        "one bit": bytes(flipped),
        "cut": data[:-100],
        "longer": data + b"\0" * 8,
        "empty": b"",
        "another adapter's": bucket.get(bucket.weights_of(other)),
    }
    bucket.put(key, bytes_by_damage[damage])
    await world.refused(tenant.key, ask(tracer.adapter), PRECONDITION, "ADAPTER_DIGEST_MISMATCH", "adapter_model")
    await world.right(tenant.key, other.adapter, other)
    bucket.put(key, data)
    await _until_served(world, tenant.key, tracer)


async def test_a_loaded_adapter_is_not_what_was_put_in_its_place(world: World, bucket: Bucket) -> None:
    """Overwriting the object of a version that is in use changes nothing: the loaded bytes are the registered ones."""
    tenant = await world.tenant()
    tracer, other = await world.tracer(tenant, 13), await world.tracer(tenant, 14)
    await world.settle()
    await world.right(tenant.key, tracer.adapter, tracer)
    bucket.put(bucket.weights_of(tracer), bucket.get(bucket.weights_of(other)))
    await world.right(tenant.key, tracer.adapter, tracer)


async def test_a_cold_adapter_can_be_declined(world: World) -> None:
    """... and a request that does not wait changes nothing for one that does."""
    tenant = await world.tenant()
    tracer = await world.tracer(tenant, 15)
    await world.settle()
    request = ask(tracer.adapter, cold_load=pb.COLD_LOAD_REJECT)
    error = await world.refused(tenant.key, request, UNAVAILABLE, "ADAPTER_COLD", "cold")
    assert error.retry_after_s is not None
    await world.right(tenant.key, tracer.adapter, tracer, cold_load=pb.COLD_LOAD_WAIT)
    await world.right(tenant.key, tracer.adapter, tracer, cold_load=pb.COLD_LOAD_REJECT)


async def test_many_first_requests_at_once(world: World) -> None:
    tenant = await world.tenant()
    tracers = [await world.tracer(tenant, number) for number in range(20, 26)]
    await world.settle()
    answers = await asyncio.gather(
        *(world.right(tenant.key, tracer.adapter, tracer) for _ in range(6) for tracer in tracers)
    )
    tiers = {answer.timings.adapter_tier for answer in answers}
    assert pb.ADAPTER_TIER_OBJECT_STORE in tiers
    await world.serves_on()


async def _until_served(world: World, key: str, tracer: Tracer) -> Any:
    """A failure may be remembered for as long as its own retry hint says, and not for ever."""
    async with asyncio.timeout(10):
        while True:
            answer = await world.stream(key, ask(tracer.adapter))
            if answer.error is None:
                world.check(answer, tracer)
                return answer
            assert answer.messages == []
            await asyncio.sleep(answer.retry_after_s or 0.2)
