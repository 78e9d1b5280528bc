"""What a request's bill says of it."""

from __future__ import annotations

from dataclasses import replace

import grpc.aio
import pytest

from lorry.api.status import error_from_rpc
from lorry.engine.fake import Fault, FaultKind
from lorry.errors import EngineUnavailable
from lorry.gateway import MemoryUsage
from lorry.registry.entries import AliasEntry
from tests.integration.gateway.world import PIRATE, World, read, request, world


def bill(here: World) -> MemoryUsage:
    assert isinstance(here.usage, MemoryUsage)
    return here.usage


async def test_a_bill_says_who_asked_for_what_and_how_long_it_took() -> None:
    async with world() as here:
        labels = {"team": "a", "user": "é"}
        messages, error = await read(here.call(request(f"{PIRATE}@stable", request_id="mine", labels=labels)))
        assert error is None
        (row,) = bill(here).rows
        assert (row.ledger_id, row.request_id) == (messages[-1].end.usage.ledger_id, "mine")
        assert (row.tenant, row.principal, row.adapter, row.version) == ("t-acme", "acme-principal", PIRATE, 1)
        assert (row.alias, row.canary, row.labels, row.replica) == ("stable", False, labels, "engine-0")
        assert (row.queue_s, row.ttft_s, row.decode_s) == (0.001, 0.004, 0.008)


async def test_a_canary_is_told_and_a_sticky_key_draws_it() -> None:
    async with world() as here:
        aliases = {"next": AliasEntry("next", 1, 2, 500)}
        here.source.change(adapters=[replace(here.adapter(PIRATE), aliases=aliases)])
        versions = []
        for key in range(40):
            for request_id in ("one", "two"):
                wanted = request(f"{PIRATE}@next", sticky_key=f"user-{key}", request_id=request_id, max_tokens=1)
                assert (await read(here.call(wanted)))[1] is None
            first, second = bill(here).rows[-2:]
            assert (first.version, first.canary) == (second.version, second.canary), "one user, one version"
            assert first.canary is (first.version == 2)
            versions.append(first.version)
        assert set(versions) == {1, 2}


async def test_a_stream_that_breaks_off_bills_without_times_that_nobody_told() -> None:
    async with world() as here:
        here.engine.fault = lambda wanted: Fault(FaultKind.HANG, 3)
        call = here.call(request(labels={"team": "a"}, max_tokens=50))
        with pytest.raises(grpc.aio.AioRpcError) as caught:  # noqa: PT012 - the error ends the loop
            async for message in call:
                if message.HasField("delta"):
                    here.engine.die()
        assert isinstance(error_from_rpc(caught.value), EngineUnavailable)
        (row,) = bill(here).rows
        assert (row.outcome, row.labels, row.queue_s) == ("ENGINE_UNAVAILABLE", {"team": "a"}, 0.001)
        assert (row.ttft_s, row.decode_s, row.cached_prompt_tokens) == (None, None, 0)
