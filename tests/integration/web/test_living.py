"""Pages of what is live: queue with its reasons, memory, slow and failed requests; and who sees what of them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

from lorry.client import AsyncClient
from lorry.engine.fake import Fault, FaultKind
from lorry.engine.views import QueueView
from lorry.errors import LorryError, ModelNotFound, RoleTooLow
from lorry.ids import AdapterDigest, AdapterKey, AdapterScope, RequestId, TenantId
from lorry.registry.fleet.observed import Places
from lorry.registry.fleet.service import Doing, ReplicaKind, Sighting
from lorry.scheduler.queue import Waiting
from lorry.scheduler.reasons import WaitReason
from lorry_admin.web.boards import board_json, live_events
from lorry_admin.web.living import queue_board
from lorry_admin.web.pages import living
from tests.integration.web.test_live import events
from tests.integration.web.world import BASE, World

PIRATE = "tenants/acme/adapters/pirate"
EVIL = "<script>alert(1)</script>\"'&"


async def until(met: Callable[[], Any]) -> Any:
    async with asyncio.timeout(20):
        while not (found := await met()):
            await asyncio.sleep(0.01)
    return found


async def test_failed_and_slow_requests_and_whose_they_are(here: World) -> None:
    await here.adapter("acme", "pirate")
    version = await here.admin.get_version(f"{PIRATE}/versions/1")
    anna, bert, root = await here.logged_in("anna"), await here.logged_in("bert"), await here.logged_in("root")
    own, others = [await here.admin.create_key(one, "app", "member") for one in ("acme", "beta")]
    await here.seen()
    async with AsyncClient(here.address, own.text) as mine, AsyncClient(here.address, others.text) as theirs:
        done = await mine.generate(PIRATE, "the secret prompt", max_tokens=5, request_id="mine-ok")
        for model in (f"tenants/acme/adapters/{EVIL}", PIRATE):
            with pytest.raises(ModelNotFound):
                await theirs.generate(model, "the secret prompt", max_tokens=5, request_id=f"theirs-{EVIL}")
        here.engine.fault = lambda request: Fault(FaultKind.END, 1)
        with pytest.raises(LorryError):
            await mine.generate(PIRATE, "the secret prompt", max_tokens=5, request_id="mine-broken")
    (broken,) = (await here.admin.list_recent_requests("acme")).requests
    assert (broken.request_id, broken.tenant, broken.outcome) == ("mine-broken", "tenants/acme", "EMPTY_STREAM")
    assert (broken.version, broken.adapter_sha256) == (f"{PIRATE}/versions/1", version.sha256)
    assert broken.replica
    assert broken.HasField("queue_seconds")
    assert not broken.HasField("decode_seconds")
    (slow,) = (await here.admin.list_recent_requests("acme", slow=True)).requests
    usage = done.usage
    assert (slow.request_id, slow.outcome) == ("mine-ok", "OK")
    assert (slow.prompt_tokens, slow.output_tokens) == (usage.prompt_tokens, usage.output_tokens)
    assert (slow.prefill_seconds, slow.ttft_seconds) == (0.003, 0.004)
    assert slow.duration_seconds > 0
    of_all = (await here.admin.list_recent_requests("-")).requests
    assert [one.tenant for one in of_all] == ["tenants/acme", "tenants/beta", "tenants/beta"]
    assert len((await here.admin.list_recent_requests("-", page_size=1)).requests) == 1

    every = (await root.get("/operator/requests")).text
    assert "mine-broken" in every
    assert "theirs-" in every
    assert EVIL not in every
    mine_only = (await anna.get("/tenants/acme/requests")).text
    assert "mine-broken" in mine_only
    assert "theirs-" not in mine_only
    assert "beta" not in mine_only
    assert "mine-" not in (await bert.get("/tenants/beta/requests")).text
    assert (await bert.get("/tenants/acme/requests")).status_code == 404
    for text in (every, mine_only, str(of_all)):
        assert "secret prompt" not in text
    for username in ("anna", "vera"):
        login = here.accounts._accounts[username].login
        async with here.client(login) as client:
            assert (await client.list_recent_requests("acme")).requests
            with pytest.raises(RoleTooLow):
                await client.list_recent_requests("-")


async def test_the_queue_of_gateway_and_engine(here: World) -> None:
    await here.adapter("acme", "pirate")
    await here.admin.set_quota("acme", concurrency=1, queue_length=3)
    key = (await here.admin.create_key("acme", "app", "member")).text
    await here.seen()
    here.engine.fault = lambda request: Fault(FaultKind.LATE, 1)
    async with AsyncClient(here.address, key) as client:
        asked = [
            asyncio.create_task(client.generate(PIRATE, "x", max_tokens=2, request_id=f"mine-{at}")) for at in range(2)
        ]
        (held,) = await until(lambda: _waiting(here))
        assert held.request_id in ("mine-0", "mine-1")
        assert (held.tenant, held.version) == ("tenants/acme", f"{PIRATE}/versions/1")
        in_engine = here.engine.seen[-1]
        beta = (await here.admin.get_tenant("beta")).uid
        assert in_engine.adapter is not None
        gone = AdapterKey(AdapterDigest("f" * 64), AdapterScope("ad_gone"))
        rows = (
            Waiting(
                in_engine.request_id, in_engine.tenant, in_engine.adapter.key, 0, 8.0, WaitReason.KV_PAGES, 2, 0, 9
            ),
            Waiting(RequestId("elsewhere"), TenantId(beta), gone, 1, 2.0, WaitReason.ADAPTER_SLOTS, 0, 0, 9),
        )
        here.engine.queued = QueueView(1, 8, rows, {(row.tenant, row.reason): 1 for row in rows})
        root = await here.logged_in("root")
        page = (await root.get("/operator/queue")).text
        for text in ("quota: requests at one time", "no KV pages", "no adapter slot", "acme / pirate 1", "elsewhere #1",
                     "not registered any more", "in the gateway"):  # fmt: skip
            assert text in page, text
        found = await here.admin.list_waiting_requests()
        assert {one.request_id for one in found.requests} == {"mine-0", "mine-1", "elsewhere"}, "as clients know them"
        assert found.total == 3
        here.engine.release.set()
        await asyncio.gather(*asked)
    here.engine.queued = QueueView()
    assert (await here.admin.list_waiting_requests()).total == 0


async def _waiting(here: World) -> Any:
    return [one for one in (await here.admin.list_waiting_requests()).requests if not one.replica]


async def _key_of(here: World, version: str) -> AdapterKey:
    adapter = await here.admin.get_adapter(version.partition("/versions")[0])
    return AdapterKey(AdapterDigest((await here.admin.get_version(version)).sha256), AdapterScope(adapter.uid))


async def test_where_adapters_are_and_whose(here: World) -> None:
    for tenant in ("acme", "beta"):
        await here.adapter(tenant, "pirate", (0, 1))  # equal bytes
    await here.admin.preload_version(f"{PIRATE}/versions/2")
    await here.admin.preload_version("tenants/beta/adapters/pirate/versions/1")
    assert [one.name async for one in here.admin.list_residency("acme")] == [f"{PIRATE}/versions/2"]
    root, anna = await here.logged_in("root"), await here.logged_in("anna")
    memory = (await root.get("/operator/memory")).text
    assert "acme / pirate 2" in memory
    assert "beta / pirate 1" in memory
    overview, listed = (await anna.get("/tenants/acme")).text, (await anna.get("/tenants/acme/adapters")).text
    assert "<td>host</td>" in overview
    assert 'class="muted">host</td>' in listed
    await here.admin.preload_version("tenants/beta/adapters/pirate/versions/2")
    now = r"to [^<]* UTC"  # to the second
    again = (await anna.get("/tenants/acme")).text
    assert re.sub(now, "", again) == re.sub(now, "", overview), "what others have shows nowhere"
    place, key = f"/{PIRATE}/versions/1", await _key_of(here, f"{PIRATE}/versions/1")
    elsewhere = Sighting("engine-elsewhere", ReplicaKind.ENGINE, Doing.SERVING)
    for scope, shown in (("ad_beta", False), (key.scope, True)):
        held = {AdapterKey(key.digest, AdapterScope(scope)): Places(host=True)}
        await here.registry.fleet.report(elsewhere, held)
        told = (await anna.get(place)).text
        assert ("engine-elsewhere</code>: host memory · seen by another gateway at <time" in told) == shown
    here.engine.die()
    assert "does not answer" in (await root.get("/operator/memory")).text
    assert "An engine does not say now" in (await anna.get("/tenants/acme")).text


@pytest.mark.parametrize("page", ["memory", "queue", "requests"])
async def test_boards_follow(here: World, page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(living, "live_events", lambda look: live_events(look, 0.01, 0.05))
    await here.adapter("acme", "pirate")
    await here.admin.preload_version(f"{PIRATE}/versions/1")
    root, anna = await here.logged_in("root"), await here.logged_in("anna")
    await root.get(f"/operator/{page}")
    text = (await root.script(f"/operator/{page}/live", method="GET")).text
    found = events("\n\n".join(block for block in text.strip().split("\n\n") if not block.startswith(":")))
    assert {name for name, _ in found} == {"board"}
    shown = (await root.get(f"/operator/{page}")).text
    assert f'data-shape="{found[0][1]["shape"]}"' in shown
    assert (await anna.script(f"/operator/{page}/live", method="GET")).status_code == 404
    assert (await root.http.get(f"/operator/{page}/live")).status_code == 403, "a page's own script alone"
    here.engine.die()
    text = (await root.script(f"/operator/{page}/live", method="GET")).text
    assert "Traceback" not in text


async def test_a_stream_ends_with_the_session(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def look() -> Any:
        return queue_board(await here.admin.list_waiting_requests())

    seen = [block async for block in live_events(look, 0.001, 0.003)]
    assert len(seen) == 3
    assert board_json(await look())["rows"]["waiting"] == []
    monkeypatch.setattr(living, "live_events", lambda look: live_events(look, 0.01, 0.5))
    root = await here.logged_in("root")
    login = here.accounts._accounts["root"].login
    here.keys[login.id] = "lorry_" + "0" * 16 + "_" + "x" * 43
    text = (await root.script("/operator/queue/live", method="GET")).text
    ((name, told),) = events(text)
    assert (name, told["reason"]) == ("error", "UNAUTHENTICATED")
    assert BASE not in text
