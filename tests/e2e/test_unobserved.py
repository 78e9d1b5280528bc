"""Two tenants register equal bytes: neither can tell, from anything that the platform says, that the other has them.

Bert's whole life with an adapter is told twice, in two platforms: in one of them anna has the same bytes, on the
device, with a request that runs on them all the while; in the other there is no anna. What he is told is the same,
field by field, but for names that are made up, times and durations. Then anna's side: he changed nothing for her.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from lorry.api.v1 import adapter_admin_pb2 as adapters
from lorry.api.v1 import generate_pb2 as pb
from lorry.cli.platform import Settings
from lorry.client.admin import AdminClient
from lorry.config import StoreConfig
from lorry.errors import LorryError
from tests.e2e.world import BASE, CONTEXT, Tenant, Tracer, World, ask, fill, running, settings
from tests.support.tracers import write_tracer

PROMPT = pb.TokenIds(ids=range(10, 60))
"""Three full pages and a part."""
MADE_UP = {"uid", "etag", "name", "upload", "request_id", "ledger_id", "registry_epoch", "adapter"}
"""What is another in every platform. ``name`` and ``adapter`` are names that the test chose."""
OF_ALL = {"max_distinct_adapters", "min_distinct_adapters"}
"""Of all that runs in the same steps, whoever's and whatever bytes it has: no other's copy shows in these."""


def _plain(value: Any) -> Any:
    """Without what is made up, moments and durations."""
    if isinstance(value, dict):
        kept = {name: found for name, found in value.items() if name not in MADE_UP | OF_ALL}
        return {name: _plain(found) for name, found in kept.items() if not name.endswith(("_time", "_seconds"))}
    return [_plain(one) for one in value] if isinstance(value, list) else value


@dataclass
class Told:
    """Everything that one tenant is told, in order."""

    world: World
    tenant: Tenant
    rows: list[tuple[str, Any]] = field(default_factory=list)

    def note(self, what: str, message: Message) -> None:
        fields = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
        self.rows.append((what, _plain(fields)))

    async def call(self, method: str, request: Any) -> Any:
        """An admin call, or what it is refused with."""
        try:
            made = await self.world.admin_call(getattr(self.world.adapter_admin, method), request, self.tenant.key)
        except LorryError as error:
            self.rows.append((method, (error.reason, error.message, dict(error.metadata))))
            return None
        self.note(method, made)
        return made

    async def asks(self, tracer: Tracer, cold: pb.ColdLoad.ValueType = pb.COLD_LOAD_WAIT) -> None:
        wanted = ask(tracer.name, token_ids=PROMPT, cold_load=cold)
        wanted.output.timings = True
        answer = await self.world.stream(self.tenant.key, wanted)
        if answer.error is not None:
            error = answer.error
            assert not answer.messages
            self.rows.append(("refused", (answer.code, error.reason, error.message, dict(error.metadata))))
            return
        self.world.check(answer, tracer)
        self.note("usage", answer.end.usage)
        self.note("timings", answer.end.timings)
        self.note("model", answer.end.model)

    async def push(self, adapter: str, folder: Path, token: int) -> Tracer:
        """Every byte is asked for, and every check is made and told."""
        async with AdminClient(self.world.platform.address, self.tenant.key) as client:
            made = await client.push(adapter, folder, BASE)
        assert made.checks
        self.note("pushed", made)
        return Tracer(adapter, made.version, made.sha256, token)


def write_bytes(folder: Path, number: int = 7) -> int:
    """The same wherever it is written."""
    token = write_tracer(folder, number)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": "tracer"}))
    return token


async def life(told: Told, folder: Path, token: int) -> None:
    """From the first upload to the purge; each step is one at which a copy that others have might show."""
    resource = told.tenant.resource
    adapter = f"{resource}/adapters/mine"
    await told.call("CreateAdapter", adapters.CreateAdapterRequest(parent=resource, adapter_id="mine"))
    mine = await told.push(adapter, folder, token)
    place = adapters.GetResidencyRequest(name=mine.name)
    await told.world.settle()
    await told.call("GetResidency", place)
    await told.asks(mine, pb.COLD_LOAD_REJECT)
    await told.asks(mine)
    await told.call("GetResidency", place)
    await told.asks(mine, pb.COLD_LOAD_REJECT)
    await told.call("EvictAdapterVersion", adapters.EvictAdapterVersionRequest(name=mine.name))
    await told.call("EvictAdapterVersion", adapters.EvictAdapterVersionRequest(name=mine.name))
    await told.asks(mine)
    again = await told.push(adapter, folder, token)
    await told.call("GetResidency", adapters.GetResidencyRequest(name=again.name))
    await told.call("GetAdapter", adapters.GetAdapterRequest(name=adapter))
    await told.call("ListAdapters", adapters.ListAdaptersRequest(parent=resource))
    await told.call("ListAdapterVersions", adapters.ListAdapterVersionsRequest(parent=adapter))
    await told.call("QuarantineAdapterVersion", adapters.QuarantineAdapterVersionRequest(name=mine.name, reason="bad"))
    await told.world.settle()
    await told.asks(mine)
    await told.call("DeleteAdapter", adapters.DeleteAdapterRequest(name=adapter))
    await told.world.settle()
    await told.call("PurgeAdapter", adapters.PurgeAdapterRequest(name=adapter))
    await told.call("GetAdapter", adapters.GetAdapterRequest(name=adapter))
    await told.call("GetAdapterVersion", adapters.GetAdapterVersionRequest(name=mine.name))
    # Anew, under another name: nothing of the first is left.
    await told.call("CreateAdapter", adapters.CreateAdapterRequest(parent=resource, adapter_id="anew"))
    anew = await told.push(f"{resource}/adapters/anew", folder, token)
    await told.world.settle()
    await told.call("GetResidency", adapters.GetResidencyRequest(name=anew.name))
    await told.asks(anew, pb.COLD_LOAD_REJECT)
    await told.call("PreloadAdapterVersion", adapters.PreloadAdapterVersionRequest(name=anew.name))
    await told.asks(anew)


def on_its_own(home: Path, base: Path) -> Settings:
    return replace(settings(home, base), store=StoreConfig(url=f"file://{home}-objects"))


async def tenant(world: World, name: str) -> Tenant:
    await world.admin.create_tenant(name, name.title())
    await world.admin.grant(name, BASE)
    made = await world.admin.create_key(name, "developer", "owner")
    return Tenant(name, made.text, made.api_key.name)


async def residency(world: World, of: Tenant, tracer: Tracer) -> tuple[bool, bool, bool]:
    found = await world.admin_call(
        world.adapter_admin.GetResidency, adapters.GetResidencyRequest(name=tracer.name), of.key
    )
    return found.replicas[0].device, found.replicas[0].host, found.replicas[0].disk


@asynccontextmanager
async def always_asking(world: World, of: Tenant, tracer: Tracer) -> AsyncIterator[None]:
    """A request of the tenant's runs on the tracer all the while, and each of them is answered right."""
    running_now, enough = asyncio.Event(), asyncio.Event()

    async def ask_on() -> None:
        while not enough.is_set():
            call = world.start(of.key, ask(tracer.name, CONTEXT - 64, token_ids=PROMPT))
            async for message in call:
                running_now.set()
                assert set(message.delta.token_ids) <= {tracer.token}
                if enough.is_set():
                    call.cancel()
                    return

    task = asyncio.create_task(ask_on())
    await running_now.wait()
    yield
    assert not task.done(), "it was cut"
    enough.set()
    await task


async def test_nobody_can_tell_who_else_has_the_bytes(tracer_base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bytes"
    token = write_bytes(folder)
    async with running(tmp_path / "a", on_its_own(tmp_path / "alone", tracer_base)) as world:
        await fill(world)
        alone = Told(world, await tenant(world, "bert"))
        await life(alone, folder, token)
    async with running(tmp_path / "b", on_its_own(tmp_path / "beside", tracer_base)) as world:
        await fill(world)
        anna = await tenant(world, "anna")
        adapter = (await world.admin.create_adapter("anna", "theirs")).name
        version = await world.admin.push(adapter, folder, BASE)
        theirs = Tracer(adapter, version.version, version.sha256, token)
        beside = Told(world, await tenant(world, "bert"))
        await world.settle()
        async with always_asking(world, anna, theirs):
            await life(beside, folder, token)
            assert await residency(world, anna, theirs) == (True, True, True)
        for (what, found), (_, want) in zip(beside.rows, alone.rows, strict=True):
            assert found == want, what
        tiers = [row["adapter_tier"] for what, row in alone.rows if what == "timings"]
        cold, host, device = (f"ADAPTER_TIER_{tier}" for tier in ("OBJECT_STORE", "HOST", "DEVICE"))
        assert tiers == [cold, device, host, host], "the rows say something"
        assert [row[1] for what, row in alone.rows if what == "refused"] == [
            "ADAPTER_COLD",
            "ADAPTER_QUARANTINED",
            "ADAPTER_COLD",
        ]
        # And what bert did was nothing to anna, nor is it to him what she does.
        await world.idle()
        answer = await world.right(anna.key, theirs.name, theirs, token_ids=PROMPT)
        assert answer.timings.adapter_tier == pb.ADAPTER_TIER_DEVICE
        assert answer.end.usage.cached_prompt_tokens == 48
        await world.admin_call(world.adapter_admin.DeleteAdapter, adapters.DeleteAdapterRequest(name=adapter))
        receipt = await world.admin_call(world.adapter_admin.PurgeAdapter, adapters.PurgeAdapterRequest(name=adapter))
        one = next(row for what, row in alone.rows if what == "PurgeAdapter")["replicas"][0]
        assert receipt.replicas[0].device_slots == 1 == one["device_slots"]
        assert receipt.replicas[0].kv_pages >= 3
        anew = Tracer("tenants/bert/adapters/anew", 1, theirs.sha256, token)
        answer = await world.right(beside.tenant.key, anew.name, anew, token_ids=PROMPT)
        assert answer.timings.adapter_tier == pb.ADAPTER_TIER_DEVICE
        assert answer.end.usage.cached_prompt_tokens == 48
