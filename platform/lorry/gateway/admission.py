"""From a request on the wire to a request for an engine: authenticated, resolved, checked, tokenized, bounded."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from lorry.api.status import bearer_token
from lorry.api.v1 import generate_pb2 as pb
from lorry.engine.contract import EngineRequest
from lorry.errors import DeadlineExceeded, InvalidRequest
from lorry.gateway.checks import Violations, check_fields, check_text
from lorry.gateway.ports import SnapshotSource
from lorry.gateway.prompts import prompt_ids
from lorry.gateway.routes import EngineRoutes, Route
from lorry.gateway.salts import TenantSalts
from lorry.gateway.served import check_served
from lorry.gateway.sizes import Room
from lorry.gateway.texts import VersionTexts, text_of
from lorry.gateway.wire import Answer
from lorry.ids import RequestId, TenantId
from lorry.registry.authz import Caller
from lorry.registry.snapshot import Resolution, Snapshot
from lorry.request import StoppingParams

Context = grpc.aio.ServicerContext[Any, Any]
_NO_DEADLINE_S = 365 * 24 * 3600.0
"""gRPC states "no deadline" as none, or as one centuries away."""


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


@dataclass(frozen=True, slots=True)
class Admission:
    """``now``: Unix seconds. ``max_tokens_cap``: most output tokens of one request, all choices together; None is the
    context. ``texts``: versions' own tokenizers and templates; None serves none."""

    source: SnapshotSource
    routes: EngineRoutes
    pool: Executor
    now: Callable[[], float]
    salts: TenantSalts = field(repr=False)
    max_tokens_cap: int | None = None
    texts: VersionTexts | None = None

    def authenticate(self, context: Context) -> tuple[str, Snapshot, Caller]:
        """The key, the snapshot that all of this request is judged by, and the caller."""
        api_key = bearer_token(context)
        snapshot = self.source.current()
        return api_key, snapshot, snapshot.authenticate(api_key, self.now())

    def resolve(self, snapshot: Snapshot, caller: Caller, field: str, model: str, sha256: str = "") -> Resolution:
        if not model:
            raise InvalidRequest.field(field, "empty; send the name of a model, ListModels has them")
        return snapshot.resolve(caller, model, sha256, self.now())

    async def admit(self, message: pb.GenerateRequest, context: Context) -> Admitted:
        """Raises whatever is wrong with the request; nothing has been asked of an engine then."""
        api_key, snapshot, caller = self.authenticate(context)
        check_served(message)
        resolution = self.resolve(snapshot, caller, "model", message.model, message.expected_sha256)
        route = await self.routes.route(resolution.base)
        fields = check_fields(message, vocabulary_of(resolution, route), route.context_tokens)
        prompt = await self._prompt(message, resolution, route, caller.tenant)
        source_field = message.WhichOneof("input") or "prompt"
        room = Room(route.context_tokens, self.max_tokens_cap)
        max_tokens, source = room.max_tokens(fields, source_field, len(prompt))
        stopping = message.stopping
        request = EngineRequest(
            request_id=RequestId(uuid.uuid4().hex),
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
        return Admitted(api_key, caller, resolution, route, request, answer, output.flush)

    async def count(self, message: pb.CountTokensRequest, context: Context) -> tuple[int, ...]:
        _, snapshot, caller = self.authenticate(context)
        resolution = self.resolve(snapshot, caller, "model", message.model)
        bad = Violations()
        if message.WhichOneof("input") is None:
            bad.add("prompt", "no input; send one of prompt and chat")
        check_text(message, bad)
        bad.raise_if_any()
        route = await self.routes.route(resolution.base)
        return await self._prompt(message, resolution, route, caller.tenant)

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


def deadline_of(context: Context) -> float | None:
    """Seconds left, None without a deadline. Raises DeadlineExceeded where none is left."""
    left = context.time_remaining()  # type: ignore[no-untyped-call, unused-ignore]  # by the stubs installed
    if left is None or left > _NO_DEADLINE_S:
        return None
    if left <= 0:
        raise DeadlineExceeded("the deadline passed before the request was admitted; allow more time")
    return float(left)


__all__ = ["Admission", "Admitted", "Context", "deadline_of", "vocabulary_of"]
