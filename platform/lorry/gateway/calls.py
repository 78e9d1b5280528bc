"""One generation from submission to its bill, the same for whole answers and streams."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager

from lorry.engine.contract import Finished
from lorry.errors import EngineUnavailable, LorryError, ProvenanceMismatch
from lorry.gateway.admission import Admitted, Context
from lorry.gateway.counters import GatewayCounters
from lorry.gateway.live import LiveCall, LiveCalls
from lorry.gateway.ports import UsageRow, UsageSink
from lorry.gateway.provenance import Expected
from lorry.gateway.relay import Batch, Pace, Relay
from lorry.gateway.routes import EngineRoutes


class Call:
    """A generation that runs. ``ledger_id`` names its one bill, whoever ends it."""

    def __init__(self, admitted: Admitted, relay: Relay, live: LiveCall, calls: LiveCalls, started_at: float) -> None:
        self.started_at = started_at
        self._live = live
        self._calls = calls
        self.admitted = admitted
        self.relay = relay
        self.ledger_id = f"us_{uuid.uuid4().hex}"
        self.handed = 0
        """Tokens of all choices handed to the transport so far; the handler counts them."""
        self.settled = False

    async def batches(self) -> AsyncGenerator[Batch, None]:
        """Until one is finished; each is checked before it is handed out."""
        while True:
            batch = await self.relay.next()
            self.check()
            yield batch
            if batch.finished is not None:
                return

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
    ) -> None:
        self._live = live
        self._routes = routes
        self._usage = usage
        self._counters = counters
        self._pace = pace
        self._now = now

    @asynccontextmanager
    async def open(self, admitted: Admitted, context: Context) -> AsyncIterator[Call]:
        """Submits the request. However the block is left, the engine's iterator is closed and the tokens that were
        handed out are billed."""
        pace = Pace(0.0, 1) if admitted.flush else self._pace
        expected = Expected.of(admitted.resolution)
        relay = Relay(admitted.route.engine, admitted.request, expected, pace)
        live = LiveCall(admitted.api_key, admitted.caller, admitted.resolution, relay, admitted.resolution.epoch)
        if task := asyncio.current_task():
            live.stop_sending = task.cancel
        call = Call(admitted, relay, live, self._live, self._now())
        # A generator that is cancelled while the transport is full is closed late: the RPC's end aborts as well.
        context.add_done_callback(lambda _: relay.abort())  # type: ignore[arg-type]  # the stubs name its argument
        outcome = "CANCELLED"
        self._live.add(live)
        try:
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
                        self._usage.post(self._row(call, outcome, call.handed, 0))
            finally:
                await relay.close()

    async def settle(self, call: Call, finished: Finished) -> None:
        """The bill of a request that finished, durable when this returns: only then may its end be sent."""
        await self._usage.record(self._row(call, "OK", finished.output_tokens, finished.cached_prompt_tokens))
        call.settled = True

    def _row(self, call: Call, outcome: str, output_tokens: int, cached: int) -> UsageRow:
        admitted = call.admitted
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
            replica=call.relay.started.provenance.replica,
            prompt_tokens=admitted.answer.prompt_tokens,
            output_tokens=output_tokens,
            cached_prompt_tokens=cached,
            outcome=outcome,
            started_at=call.started_at,
            ended_at=self._now(),
        )


__all__ = ["Call", "Calls"]
