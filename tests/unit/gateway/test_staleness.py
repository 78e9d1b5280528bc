"""The two policies, and where they are asked."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from lorry.api.v1 import generate_pb2 as pb
from lorry.config import GatewayConfig
from lorry.engine.fake import Fault, FaultKind
from lorry.errors import Unavailable
from lorry.gateway.staleness import Staleness
from tests.integration.gateway.world import BASE, PIRATE, read, request, until, world


@pytest.mark.parametrize(
    ("config", "seconds", "cuts"),
    [
        (GatewayConfig(), 5.0, True),
        (GatewayConfig(staleness="strict", staleness_seconds=2.0), 2.0, True),
        (GatewayConfig(staleness="available"), 300.0, False),
        (GatewayConfig(staleness="available", staleness_seconds=60.0), 60.0, False),
    ],
)
def test_policies(config: GatewayConfig, seconds: float, cuts: bool) -> None:
    found = Staleness.of(config)
    assert found == Staleness(seconds, cuts)
    found.require_fresh(seconds - 0.001)
    found.require_live(seconds - 0.001)
    with pytest.raises(Unavailable) as caught:
        found.require_fresh(seconds)
    assert caught.value.retry_after_s == 1.0
    if cuts:
        with pytest.raises(Unavailable):
            found.require_live(seconds)
    else:
        found.require_live(1e9)


def test_no_policy() -> None:
    with pytest.raises(ValueError, match="'lenient' is no policy"):
        Staleness.of(GatewayConfig(staleness="lenient"))  # type: ignore[arg-type]  # on purpose


async def test_every_call_asks() -> None:
    """Before anything else is looked at, so that nothing is learned of a snapshot that is too old."""
    async with world(staleness="available", staleness_seconds=10.0) as here:
        here.source.seconds = 10.0
        stub, metadata = here.stub, here.metadata("no such key")
        calls: list[Any] = [
            stub.Generate(request(), metadata=metadata),
            stub.GetModel(pb.GetModelRequest(name=BASE), metadata=metadata),
            stub.ListModels(pb.ListModelsRequest(), metadata=metadata),
            stub.CountTokens(pb.CountTokensRequest(model=BASE, prompt="x"), metadata=metadata),
        ]
        for call in calls:
            assert "registry" in (await call.details())
        assert type((await read(here.call(request())))[1]) is Unavailable
        here.source.seconds = 9.9
        assert (await read(here.call(request())))[1] is None


@pytest.mark.parametrize("policy", ["strict", "available"])
async def test_live_streams(policy: Any) -> None:
    async with world(staleness=policy, staleness_seconds=10.0) as here:
        here.engine.fault = lambda r: Fault(FaultKind.LATE, 3)
        call = here.call(request())
        await until(lambda: len(here.gateway.live) == 1 and len(here.engine.seen) == 1)
        here.source.seconds = 10.0
        here.gateway.live.check()
        assert here.gateway.counters.cut_streams == (policy == "strict"), "before its engine sends more"
        here.gateway.live.check()
        here.engine.release.set()
        _, error = await read(call)
        assert type(error) is (Unavailable if policy == "strict" else type(None))
        assert here.gateway.counters.cut_streams == (policy == "strict")


async def test_a_key_that_is_given_longer_is_not_cut_at_its_first_end() -> None:
    """Its end moved while the stream ran: it is the newest that counts."""
    async with world() as here:
        entry = next(key for key in here.tables.keys.values() if key.principal == "acme-principal")
        here.source.change(keys=[replace(entry, expires_at=time.time() + 30)])
        here.engine.fault = lambda r: Fault(FaultKind.LATE, 3)
        call = here.call(request(PIRATE))
        await until(lambda: len(here.engine.seen) == 1)
        here.source.change(keys=[replace(entry, expires_at=time.time() + 3600)])
        await until(lambda: all((live.caller.expires_at or 0) > time.time() + 60 for live in here.gateway.live))
        here.engine.release.set()
        assert (await read(call))[1] is None
