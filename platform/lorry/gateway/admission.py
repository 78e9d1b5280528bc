"""From a request on the wire to a request for an engine: authenticated, resolved, checked, tokenized, bounded."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

from lorry.api.v1 import generate_pb2 as pb
from lorry.engine.contract import EngineRequest
from lorry.errors import InvalidRequest, Unauthenticated
from lorry.gateway.checks import Violations, check_fields, check_text
from lorry.gateway.context import CallContext, deadline_of
from lorry.gateway.counters import GatewayCounters
from lorry.gateway.limits import Limits
from lorry.gateway.ports import SnapshotSource
from lorry.gateway.prompts import prompt_ids
from lorry.gateway.routes import EngineRoutes, Route
from lorry.gateway.salts import TenantSalts
from lorry.gateway.served import check_served
from lorry.gateway.sizes import Room
from lorry.gateway.staleness import DEFAULT_STALENESS, Staleness
from lorry.gateway.texts import VersionTexts, text_of
from lorry.gateway.wire import Answer
from lorry.ids import RequestId, TenantId
from lorry.registry.authz import Caller
from lorry.registry.rights import require
from lorry.registry.snapshot import Resolution, Snapshot
from lorry.request import StoppingParams
from lorry.text import Spelling

_LOOK_S = 0.01


@dataclass(frozen=True, slots=True)
class Admitted:
    """``request.request_id`` is the gateway's own, so equal ids of two tenants never meet in an engine."""

    api_key: str = field(repr=False)
    caller: Caller
    resolution: Resolution
    route: Route
    request: EngineRequest
    answer: Answer
    flush: bool
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Noted:
    """What is known of a request so far, whatever becomes of it: for whoever tells of its end."""

    caller: Caller | None = None
    resolution: Resolution | None = None


@dataclass(frozen=True, slots=True)
class Admission:
    """``now``: Unix seconds. ``max_tokens_cap``: most output tokens of one request, all choices together; None is the
    context. ``texts``: versions' own tokenizers and templates; None serves none. ``limits``: the same as of the calls
    that follow; None limits nothing here. ``counters``: where keys that do not hold are counted."""

    source: SnapshotSource
    routes: EngineRoutes
    pool: Executor
    now: Callable[[], float]
    salts: TenantSalts = field(repr=False)
    max_tokens_cap: int | None = None
    texts: VersionTexts | None = None
    staleness: Staleness = DEFAULT_STALENESS
    limits: Limits | None = None
    counters: GatewayCounters | None = None

    async def authenticate(self, context: CallContext) -> tuple[str, Snapshot, Caller]:
        """The key, the snapshot that all of this request is judged by, and the caller. Raises Unavailable where that
        snapshot may be too old. Waits only where this process stood still: for the registry's answer, a second at
        most."""
        while self.source.stood_still():  # noqa: ASYNC110  a matter of milliseconds, and of a clock rather than an event
            await asyncio.sleep(_LOOK_S)
        self.staleness.require_fresh(self.source.age())
        snapshot = self.source.current()
        try:
            api_key = context.api_key()
            return api_key, snapshot, snapshot.authenticate(api_key, self.now())
        except Unauthenticated:
            if self.counters is not None:
                self.counters.auth_failures += 1
            raise

    def resolve(
        self, snapshot: Snapshot, caller: Caller, field: str, model: str, sha256: str = "", sticky: str = ""
    ) -> Resolution:
        """``sticky`` draws between an alias and its canary."""
        if not model:
            raise InvalidRequest.field(field, "empty; send the name of a model, ListModels has them")
        return snapshot.resolve(caller, model, sha256, self.now(), sticky)

    async def admit(self, message: pb.GenerateRequest, context: CallContext, noted: Noted | None = None) -> Admitted:
        """Raises whatever is wrong with the request; nothing has been asked of an engine then. ``noted`` keeps what was
        known by then."""
        noted = noted or Noted()
        api_key, snapshot, caller = await self.authenticate(context)
        noted.caller = caller
        require(caller, "generate")
        check_served(message)
        minted = RequestId(uuid.uuid4().hex)
        sticky = message.sticky_key or message.request_id or minted
        resolution = self.resolve(snapshot, caller, "model", message.model, message.expected_sha256, sticky)
        noted.resolution = resolution
        quota_cap = None if self.limits is None else self.limits.check(caller.tenant, resolution.adapter_id)
        route = await self.routes.route(resolution.base)
        fields = check_fields(message, vocabulary_of(resolution, route), route.context_tokens)
        prompt = await self._prompt(message, resolution, route, caller.tenant)
        source_field = message.WhichOneof("input") or "prompt"
        room = Room(route.context_tokens, self.max_tokens_cap, quota_cap)
        max_tokens, source = room.max_tokens(fields, source_field, len(prompt))
        stopping = message.stopping
        request = EngineRequest(
            request_id=minted,
            tenant=caller.tenant,
            prompt=prompt,
            adapter=resolution.ref,
            base=resolution.base.base_digest,
            sampling=fields.sampling,
            stopping=StoppingParams(
                max_tokens,
                fields.min_tokens,
                fields.stop,
                fields.stop_token_ids,
                stopping.include_stop,
                stopping.ignore_eos,
            ),
            deadline_s=deadline_of(context),
            queue_timeout_s=fields.queue_timeout_s,
            reject_cold=fields.reject_cold,
            ttft_timeout_s=fields.ttft_timeout_s,
            n=fields.n,
            output=fields.output,
            cache_salt=self.salts.of(caller.tenant),
            cache_scope=fields.cache_scope,
            vocabulary=resolution.vocabulary,
            text=resolution.text,
            weight=snapshot.weight_of(caller.tenant),
        )
        output = message.output
        answer = Answer(
            message.request_id or request.request_id,
            resolution,
            pb.EffectiveParams(max_tokens=max_tokens, max_tokens_source=source, seed=fields.sampling.seed),
            len(prompt),
            output.token_ids,
            output.timings if output.HasField("timings") else True,
        )
        return Admitted(api_key, caller, resolution, route, request, answer, output.flush, fields.labels)

    async def count(self, message: pb.CountTokensRequest, context: CallContext) -> tuple[int, ...]:
        _, snapshot, caller = await self.authenticate(context)
        require(caller, "count tokens")
        resolution = self.resolve(snapshot, caller, "model", message.model)
        bad = Violations()
        if message.WhichOneof("input") is None:
            bad.add("prompt", "no input; send one of prompt and chat")
        check_text(message, bad)
        bad.raise_if_any()
        if self.limits is not None:  # it takes the threads that all tenants' prompts are made ids on
            self.limits.take(caller.tenant, resolution.adapter_id)
        route = await self.routes.route(resolution.base)
        return await self._prompt(message, resolution, route, caller.tenant)

    async def spell(self, admitted: Admitted, ids: Sequence[int]) -> tuple[Spelling, ...]:
        """By the text side of the version that answers. Raises where it cannot be had, for no ids too."""
        route, tenant = admitted.route, admitted.caller.tenant
        base_dir = route.info.base_dir
        async with text_of(admitted.resolution, route.tokenizer, base_dir, self.pool, self.texts, tenant) as text:
            return await text.spell(ids) if ids else ()

    async def _prompt(
        self,
        message: pb.GenerateRequest | pb.CountTokensRequest,
        resolution: Resolution,
        route: Route,
        tenant: TenantId,
    ) -> tuple[int, ...]:
        if isinstance(message, pb.GenerateRequest) and message.WhichOneof("input") == "token_ids":
            return tuple(message.token_ids.ids)
        base_dir = route.info.base_dir
        async with text_of(resolution, route.tokenizer, base_dir, self.pool, self.texts, tenant) as text:
            return await prompt_ids(message, text)


def vocabulary_of(resolution: Resolution, route: Route) -> int:
    """Ids that a request may name are below it: those that the version's tokenizer or, with more, its weights know."""
    known = route.tokenizer.vocabulary if resolution.text is None else resolution.text.vocabulary
    return max(known, resolution.vocabulary or 0)


__all__ = ["Admission", "Admitted", "Noted", "vocabulary_of"]
