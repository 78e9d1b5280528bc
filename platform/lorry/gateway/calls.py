"""One generation from submission to its bill, the same for whole answers and streams."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from lorry.engine.contract import Finished
from lorry.errors import EngineUnavailable, LorryError, ProvenanceMismatch
from lorry.gateway.admission import Admitted
from lorry.gateway.context import CallContext
from lorry.gateway.counters import GatewayCounters
from lorry.gateway.limits import Hold, Limits
from lorry.gateway.live import LiveCall, LiveCalls
from lorry.gateway.ports import UsageRow, UsageSink
from lorry.gateway.provenance import Expected
from lorry.gateway.relay import Batch, Pace, Relay
from lorry.gateway.routes import EngineRoutes
from lorry.gateway.ticker import Ticker
from lorry.ids import RequestId


class Call:
    """A generation that runs. ``ledger_id`` names its one bill, whoever ends it."""

    def __init__(
        self, admitted: Admitted, relay: Relay, live: LiveCall, calls: LiveCalls, hold: Hold, started_at: float
    ) -> None:
        self.started_at = started_at
        self._live = live
        self._calls = calls
        self.admitted = admitted
        self.hold = hold
        self.relay = relay
        self.ledger_id = f"us_{uuid.uuid4().hex}"
        self.handed = 0
        """Tokens of all choices handed to the transport so far; the handler counts them."""
        self.settled = False
        self.billed = False
        """The sink has its row."""

    async def next(self) -> Batch:
        """The next batch, checked before it is handed out. None follows one that is finished."""
        batch = await self.relay.next()
        self.check()
        return batch

    def check(self) -> None:
        """Raises the error that has ended the request meanwhile, or that the newest registry epoch ends it with. Due
        before each message, as the one before may have waited long for its reader."""
        self._calls.verify(self._live)
        self.relay.raise_if_cut()


class Calls:
    """Opens and settles calls."""

    def __init__(
        self,
        live: LiveCalls,
        routes: EngineRoutes,
        usage: UsageSink,
        counters: GatewayCounters,
        pace: Pace,
        now: Callable[[], float],
        limits: Limits,
    ) -> None:
        self._live = live
        self._routes = routes
        self._usage = usage
        self._counters = counters
        self._pace = pace
        self._ticker = Ticker(pace.seconds)
        self._now = now
        self._limits = limits
        self.entering: dict[RequestId, Admitted] = {}
        """What waits for its quota, by the id that an engine would know."""

    @asynccontextmanager
    async def open(self, admitted: Admitted, context: CallContext) -> AsyncIterator[Call]:
        """Submits the request, once its quotas let it in. However the block is left, the engine's iterator is closed,
        the tokens that were handed out are billed, and quotas have the rest back."""
        tenant, adapter_id, began = admitted.caller.tenant, admitted.resolution.adapter_id, self._now()
        self.entering[admitted.request.request_id] = admitted
        try:
            async with self._limits.hold(tenant, adapter_id, admitted.request) as hold:
                del self.entering[admitted.request.request_id]
                async with self._running(admitted, context, hold, began) as call:
                    yield call
        finally:
            self.entering.pop(admitted.request.request_id, None)

    @asynccontextmanager
    async def _running(self, admitted: Admitted, context: CallContext, hold: Hold, began: float) -> AsyncIterator[Call]:
        tokens = 1 if admitted.flush else self._pace.tokens
        expected = Expected.of(admitted.resolution)
        relay = Relay(admitted.route.engine, hold.request, expected, tokens, self._ticker)
        live = LiveCall(admitted.api_key, admitted.caller, admitted.resolution, relay, admitted.resolution.epoch)
        live.stop_sending, live.request_id = context.cancel, admitted.answer.request_id
        call = Call(admitted, relay, live, self._live, hold, began)
        # A generator that is cancelled while the transport is full is closed late: the call's end aborts as well.
        context.add_done_callback(relay.abort)
        context.add_done_callback(hold.stand_up)
        outcome = "CANCELLED"
        self._live.add(live)
        try:
            call.check()  # it may have waited for its quota
            relay.start()
            yield call
            outcome = "OK"
        except LorryError as error:
            outcome = error.reason
            if isinstance(error, ProvenanceMismatch):
                self._counters.provenance_mismatches += 1
            if isinstance(error, EngineUnavailable):
                self._routes.forget(admitted.resolution.base.base_digest)
            raise
        except Exception:  # billed under its name, and raised on
            outcome = "INTERNAL"
            raise
        finally:
            self._live.remove(live)
            try:
                if not call.settled:
                    self._counters.aborts += outcome == "CANCELLED"
                    if call.handed:
                        self._usage.post(self._row(call, outcome, call.handed))
                        call.billed = True
            finally:
                await relay.close()

    async def settle(self, call: Call, finished: Finished) -> None:
        """The bill of a request that finished, durable when this returns: only then may its end be sent."""
        row = self._row(call, "OK", finished.output_tokens, finished)
        call.billed = True  # who is cancelled while it waits has a bill
        try:
            await self._usage.record(row)
        except LorryError:
            call.billed = False
            raise
        call.settled = True

    def _row(self, call: Call, outcome: str, output_tokens: int, finished: Finished | None = None) -> UsageRow:
        admitted, started = call.admitted, call.relay.started
        call.hold.billed(admitted.answer.prompt_tokens + output_tokens)
        resolution, caller = admitted.resolution, admitted.caller
        return UsageRow(
            ledger_id=call.ledger_id,
            tenant=caller.tenant,
            principal=caller.principal,
            key_id=caller.key_id,
            request_id=admitted.answer.request_id,
            adapter=resolution.adapter,
            version=resolution.version,
            adapter_sha256=resolution.sha256,
            base_sha256=resolution.base.base_digest,
            replica=started.provenance.replica,
            prompt_tokens=admitted.answer.prompt_tokens,
            output_tokens=output_tokens,
            cached_prompt_tokens=0 if finished is None else finished.cached_prompt_tokens,
            outcome=outcome,
            started_at=call.started_at,
            ended_at=self._now(),
            alias=resolution.alias,
            canary=resolution.canary,
            labels=admitted.labels,
            queue_s=started.queue_s,
            ttft_s=None if finished is None else finished.ttft_s,
            decode_s=None if finished is None else finished.decode_s,
            charges=call.hold.charges,
        )


__all__ = ["Call", "Calls"]
