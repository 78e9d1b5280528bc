"""A whole platform on a tracer base, filled through its admin API alone and looked at from outside."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from lorry.api.status import error_from_rpc
from lorry.api.v1 import adapter_admin_pb2 as adapters
from lorry.api.v1 import adapter_admin_pb2_grpc, generate_pb2_grpc, tenant_admin_pb2_grpc
from lorry.api.v1 import generate_pb2 as pb
from lorry.api.v1 import tenant_admin_pb2 as tenants
from lorry.cli.homes import Home
from lorry.cli.platform import Platform, Settings
from lorry.client.admin import AdminClient
from lorry.config import GatewayConfig, MemoryConfig, OpsConfig, RestartConfig, SchedulerConfig
from lorry.errors import LorryError
from tests.e2e.calls import Answer, read_stream, read_unary
from tests.support.tracers import FIRST, HOME, write_tracer, write_tracer_base

BASE = "models/tracer"
CONTEXT = 4096
EOS_TRACER = 99
"""The tracer whose token is one of the base's end-of-sequence ids."""
DEVICE_ROOM = 3
CHANGE_HOLDS_S = 5.0
"""A change is in force within a second as a rule and this always."""
FREE_WITHIN_S = 10.0
"""Bounds the wait for an engine that is to be idle within one step, on a machine that may be busy for seconds."""


def write_base(folder: Path) -> None:
    """The tracer base with a long context, so that streams live long enough to be cut."""
    write_tracer_base(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config |= {"max_position_embeddings": CONTEXT, "eos_token_id": [257, FIRST + EOS_TRACER]}
    path.write_text(json.dumps(config))


def settings(home: Path, base_dir: Path, max_sequences: int = 8) -> Settings:
    """The defaults, but for a small engine, any port, and a registry that is looked at often."""
    return Settings(
        Home(home),
        base_dir,
        gateway=GatewayConfig(port=0, drain_seconds=1.0, snapshot_poll_seconds=0.05),
        memory=MemoryConfig(budget_bytes=16 << 20, page_tokens=16, max_slots=DEVICE_ROOM, max_rank=16),
        scheduler=SchedulerConfig(max_sequences=max_sequences, token_budget=64, context_tokens=CONTEXT),
        dtype="float32",
        threads=1,
        restarts=RestartConfig(first_s=0.2, most_s=0.5, look_s=0.5),
        ops=OpsConfig(port=0),
    )


@dataclass(frozen=True, slots=True)
class Tenant:
    """``name`` is the bare one; ``key`` is an owner's."""

    name: str
    key: str
    key_name: str

    @property
    def resource(self) -> str:
        return f"tenants/{self.name}"


@dataclass(frozen=True, slots=True)
class Tracer:
    """One registered version of an adapter, and the token that proves it ran. ``version`` 0 is the base."""

    adapter: str
    version: int
    sha256: str
    token: int

    @property
    def name(self) -> str:
        """The version's own name."""
        return f"{self.adapter}/versions/{self.version}"


THE_BASE = Tracer("", 0, "", HOME)


def ask(model: str, max_tokens: int = 4, **fields: Any) -> pb.GenerateRequest:
    """Greedy, ids wanted, prompt "lorry", unless said otherwise."""
    made = pb.GenerateRequest(model=model, sampling=pb.SamplingParams(temperature=0))
    made.output.token_ids = True
    made.stopping.max_tokens = max_tokens
    if not {"prompt", "chat", "token_ids"} & set(fields):
        made.prompt = "lorry"
    made.MergeFrom(pb.GenerateRequest(**fields))
    return made


@dataclass
class World:
    platform: Platform
    admin: AdminClient
    admin_key: str
    root: Path
    channel: grpc.aio.Channel
    stub: Any
    tenant_admin: Any
    adapter_admin: Any
    canary: Tenant = field(init=False)
    canary_tracer: Tracer = field(init=False)
    _numbers: Any = field(default_factory=itertools.count)

    # Calls

    def start(self, key: str, request: pb.GenerateRequest, timeout: float | None = None) -> Any:
        """A GenerateStream call, raw."""
        return self.stub.GenerateStream(request, metadata=bearer(key), timeout=timeout)

    async def stream(self, key: str, request: pb.GenerateRequest, timeout: float | None = None) -> Answer:
        return await read_stream(self.start(key, request, timeout))

    async def generate(self, key: str, request: pb.GenerateRequest, timeout: float | None = None) -> Answer:
        return await read_unary(self.stub.Generate(request, metadata=bearer(key), timeout=timeout))

    async def admin_call(self, method: Any, request: Any, key: str | None = None) -> Any:
        """Raises leaves of lorry.errors."""
        try:
            return await method(request, metadata=bearer(key or self.admin_key))
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from None

    # What every test asks afterwards

    async def right(self, key: str, model: str, tracer: Tracer, **fields: Any) -> Answer:
        """One stream, checked for its own token, its provenance and its shape."""
        answer = await self.stream(key, ask(model, **fields))
        self.check(answer, tracer)
        return answer

    def check(self, answer: Answer, tracer: Tracer) -> None:
        """The answer is whole, has this tracer's tokens alone and states its weights, at both ends."""
        assert answer.error is None, repr(answer.error)
        answer.check_whole()
        assert answer.ids
        assert set(answer.ids) == {tracer.token}, (tracer, answer.ids)
        for resolved in answer.resolved:
            self.check_provenance(resolved, tracer)

    def check_provenance(self, resolved: pb.ResolvedModel, tracer: Tracer) -> None:
        info = self.platform.info
        assert (resolved.adapter, resolved.version, resolved.sha256) == (tracer.adapter, tracer.version, tracer.sha256)
        assert (resolved.base, resolved.base_sha256) == (BASE, info.base)
        assert resolved.tokenizer_sha256 == info.tokenizer_sha256
        assert (resolved.dtype, resolved.engine_build) == ("float32", info.engine_build)
        assert resolved.replica == info.replica
        assert not resolved.canary
        assert resolved.registry_epoch > 0

    async def refused(
        self, key: str, request: pb.GenerateRequest, code: grpc.StatusCode, reason: str, *words: str
    ) -> LorryError:
        """Streamed and unary alike: the code, the reason in its details, the words in the message, not one
        message before it; and others are served right afterwards. Returns the error."""
        streamed, unary = await asyncio.gather(self.stream(key, request), self.generate(key, request))
        for answer in (streamed, unary):
            assert answer.messages == [], answer.messages
            assert answer.error is not None, "was answered"
            assert answer.code is code, (answer.code, answer.error)
            assert answer.details_reason == reason, (answer.details_reason, answer.error)
            assert not [word for word in words if word not in answer.error.message], answer.error.message
        await self.serves_on()
        assert streamed.error is not None
        return streamed.error

    async def serves_on(self) -> None:
        """A tracer and the base answer right, in one batch, and nothing is held once they have."""
        await asyncio.gather(
            self.right(self.canary.key, self.canary_tracer.adapter, self.canary_tracer),
            self.right(self.canary.key, BASE, THE_BASE),
        )
        await self.idle()

    async def state(self) -> dict[str, Any]:
        return await self.platform.engine.client.state()

    async def idle(self, within_s: float = FREE_WITHIN_S) -> None:
        """No sequence, page, promise, pin or hold is left in the engine."""
        await self.engine_shows(lambda state: not held_by(state), within_s)

    async def engine_shows(
        self, wanted: Callable[[dict[str, Any]], bool], within_s: float = FREE_WITHIN_S
    ) -> dict[str, Any]:
        """The first state that is so; fails with the last one that was not."""
        deadline = asyncio.get_running_loop().time() + within_s
        while not wanted(state := await self.state()):
            assert asyncio.get_running_loop().time() < deadline, state
            await asyncio.sleep(0.01)
        return state

    # Filling it

    def fresh(self, stem: str) -> str:
        return f"{stem}-{next(self._numbers)}"

    async def tenant(self, stem: str = "tenant") -> Tenant:
        """A new one, with the base granted and an owner's key."""
        name = self.fresh(stem)
        await self.admin.create_tenant(name, stem.title())
        await self.admin.grant(name, BASE)
        made = await self.admin.create_key(name, "developer", "owner")
        return Tenant(name, made.text, made.api_key.name)

    async def adapter(self, tenant: Tenant, stem: str = "tracer") -> str:
        return (await self.admin.create_adapter(tenant.name, self.fresh(stem))).name

    async def push(self, adapter: str, number: int, rank: int = 1) -> Tracer:
        """Registers tracer ``number``, with bytes that no other push has, as the adapter's next version."""
        folder = self.root / "pushed" / self.fresh("adapter")
        token = write_tracer(folder, number, rank)
        config = json.loads((folder / "adapter_config.json").read_text())
        config["base_model_name_or_path"] = folder.name
        (folder / "adapter_config.json").write_text(json.dumps(config))
        version = await self.admin.push(adapter, folder, BASE)
        assert version.state == adapters.ADAPTER_VERSION_STATE_READY
        return Tracer(adapter, version.version, version.sha256, token)

    async def tracer(self, tenant: Tenant, number: int, rank: int = 1) -> Tracer:
        """A new adapter of one version."""
        return await self.push(await self.adapter(tenant), number, rank)

    async def settle(self) -> None:
        """Returns when the gateway knows every change made so far: changes arrive in order, and a new key is last."""
        key = (await self.admin.create_key("observer", self.fresh("eye"), "member")).text
        await self.key_answers(key, grpc.StatusCode.OK)

    async def key_answers(self, key: str, code: grpc.StatusCode) -> None:
        """Returns when calls with this key end with the code; fails where that takes longer than is promised."""
        deadline = asyncio.get_running_loop().time() + CHANGE_HOLDS_S
        while True:
            answer = await read_unary(self.stub.ListModels(pb.ListModelsRequest(), metadata=bearer(key)))
            if answer.code is code:
                return
            assert asyncio.get_running_loop().time() < deadline, answer
            await asyncio.sleep(0.02)

    # Admin calls that the command line's client does not make

    async def revoke_grant(self, tenant: Tenant, resource: str) -> None:
        found = await self.admin_call(self.tenant_admin.ListGrants, tenants.ListGrantsRequest(parent=tenant.resource))
        grant = next(g for g in found.grants if g.resource == resource and not g.HasField("revoke_time"))
        await self.admin_call(self.tenant_admin.RevokeGrant, tenants.RevokeGrantRequest(name=grant.name))

    async def suspend(self, tenant: Tenant, suspended: bool = True) -> None:
        request = tenants.UpdateTenantRequest(tenant=tenants.Tenant(name=tenant.resource, suspended=suspended))
        request.update_mask.paths.append("suspended")
        await self.admin_call(self.tenant_admin.UpdateTenant, request)

    async def quarantine(self, tracer: Tracer) -> None:
        request = adapters.QuarantineAdapterVersionRequest(name=tracer.name, reason="seen to misbehave")
        await self.admin_call(self.adapter_admin.QuarantineAdapterVersion, request)

    async def set_alias(self, tracer: Tracer, alias: str) -> str:
        request = adapters.SetAliasRequest(parent=tracer.adapter, alias_id=alias, version=tracer.version)
        return str((await self.admin_call(self.adapter_admin.SetAlias, request)).name)

    async def pin(self, tenant: Tenant, tracer: Tracer) -> None:
        request = tenants.SetPinRequest(parent=tenant.resource, version=tracer.name)
        await self.admin_call(self.tenant_admin.SetPin, request)

    async def clear_pin(self, tenant: Tenant, adapter: str) -> None:
        request = tenants.ClearPinRequest(parent=tenant.resource, adapter=adapter)
        await self.admin_call(self.tenant_admin.ClearPin, request)


def bearer(key: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {key}"),)


def held_by(state: dict[str, Any]) -> dict[str, Any]:
    """What an idle engine would not hold; empty where it is idle."""
    scheduler = state["scheduler"]
    held = {name: scheduler[name] for name in ("running", "waiting") if scheduler[name]}
    pages = {"used": scheduler["pages"]["used"] - scheduler["prefix_cache"]["unused"]}  # what is cached is kept
    pages["promised"] = scheduler["pages"]["promised"]
    held |= {f"pages.{name}": count for name, count in pages.items() if count}
    slots = [slot for slot in scheduler["slots"] if slot["pins"] or slot["holds"]]
    held |= {"slots": slots} if slots else {}
    return held | ({"live": state["live"]} if state["live"] else {})


@asynccontextmanager
async def running(root: Path, options: Settings, admin_key: str | None = None) -> AsyncIterator[World]:
    """A platform and a channel to it. ``admin_key`` is needed where the home is not new."""
    async with Platform(options) as platform:
        key = admin_key or platform.admin_key
        assert key is not None
        admin = AdminClient(platform.address, key)
        channel = grpc.aio.insecure_channel(platform.address, [("grpc.use_local_subchannel_pool", 1)])
        try:
            yield World(
                platform,
                admin,
                key,
                root,
                channel,
                generate_pb2_grpc.GenerateServiceStub(channel),
                tenant_admin_pb2_grpc.TenantAdminServiceStub(channel),
                adapter_admin_pb2_grpc.AdapterAdminServiceStub(channel),
            )
        finally:
            await channel.close(None)
            await admin.close()


async def fill(world: World) -> None:
    """An empty platform's first rows: the base, an observer, and a tenant whose answers say that all is well."""
    info = world.platform.info
    config_json = await asyncio.to_thread((info.base_dir / "config.json").read_text)
    await world.admin.create_base("tracer", info.base, info.tokenizer_sha256, info.context_tokens, config_json)
    await world.admin.create_tenant("observer", "Observer")
    world.canary = await world.tenant("canary")
    world.canary_tracer = await world.tracer(world.canary, 42)
    await world.settle()
    await world.serves_on()


__all__ = [
    "BASE",
    "CHANGE_HOLDS_S",
    "CONTEXT",
    "DEVICE_ROOM",
    "EOS_TRACER",
    "FREE_WITHIN_S",
    "THE_BASE",
    "Tenant",
    "Tracer",
    "World",
    "ask",
    "bearer",
    "fill",
    "held_by",
    "running",
    "settings",
    "write_base",
]
