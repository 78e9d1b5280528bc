"""Who hears of a generation's end: the log, and a collector of traces. Costs nothing where neither listens."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field

from lorry.api.v1 import generate_pb2 as pb
from lorry.config import TraceConfig
from lorry.engine.contract import Finished, Started
from lorry.errors import by_reason
from lorry.gateway.admission import Admitted, Noted
from lorry.gateway.calls import Call
from lorry.gateway.context import CallContext
from lorry.gateway.observe import request_log, w3c
from lorry.gateway.observe.sender import TraceCounts, TraceSender
from lorry.gateway.observe.story import Story
from lorry.registry.names import parse_model

FLUSH_LEAST_S = 1.0
_log = logging.getLogger(__name__)
_CODES = {reason: error.grpc_code for reason, error in by_reason().items()} | {"OK": "OK", "CANCELLED": "CANCELLED"}


@dataclass(frozen=True, slots=True)
class Ended:
    """A generation as its end finds it: what was asked, by whom, and how far it came. ``began`` and ``ended`` are of
    the loop's clock."""

    context: CallContext
    outcome: str
    began: float
    ended: float
    noted: Noted
    message: pb.GenerateRequest | None = field(default=None, repr=False)
    request_id: str = ""
    stream: bool = False
    admitted: Admitted | None = field(default=None, repr=False)
    call: Call | None = None
    finished: Finished | None = None


class Watch:
    """Belongs to one event loop. ``sender`` None makes no traces; ``ratio`` of those that begin here are kept."""

    def __init__(self, sender: TraceSender | None = None, ratio: float = 1.0) -> None:
        self._sender = sender
        self._ratio = ratio
        self.counts = TraceCounts() if sender is None else sender.counts

    def tell(self, ended: Ended) -> None:
        """Never raises: whatever happens here, the request has had its answer."""
        code = _CODES.get(ended.outcome, "INTERNAL")
        logged = request_log.listens(code)
        if not logged and self._sender is None:
            return
        try:
            story = story_of(ended, code, self._trace(ended.context))
            if logged:
                request_log.log(story)
            if self._sender is not None and story.trace is not None and story.trace.sampled:
                self._sender.add(story)
        except Exception:  # nobody's request may fail since it was watched
            _log.exception("the end of a generation could not be told")

    async def close(self, within_s: float) -> None:
        """Sends what waits for the collector, for at most so long, but a second where it is less."""
        if self._sender is not None:
            await asyncio.to_thread(self._sender.close, max(within_s, FLUSH_LEAST_S))

    def _trace(self, context: CallContext) -> w3c.TraceContext | None:
        found = w3c.read(*context.trace_headers())
        if found is None and self._sender is not None:
            return w3c.begin(self._ratio)
        return found


def open_watch(config: TraceConfig | None, instance: str) -> Watch:
    """``instance``: of this gateway. Imports OpenTelemetry where ``config`` asks for traces, and only there."""
    if config is None:
        return Watch()
    from lorry.gateway.observe.otlp import OtlpExporter

    return Watch(TraceSender(OtlpExporter(config.endpoint, instance)), config.ratio)


def story_of(ended: Ended, code: str, trace: w3c.TraceContext | None) -> Story:
    message, caller, resolution = ended.message, ended.noted.caller, ended.noted.resolution
    known: dict[str, object] = {}
    if message is not None:
        known["operation"] = "chat" if message.WhichOneof("input") == "chat" else "text_completion"
        known["model"] = message.model if parse_model(message.model) is not None else ""
    if caller is not None:
        known |= {"tenant": caller.tenant_name, "principal": caller.principal}
    if resolution is not None:
        known |= {
            "adapter": resolution.adapter,
            "version": resolution.version,
            "sha256": resolution.sha256,
            "base": resolution.base.resource,
            "base_sha256": resolution.base.base_digest,
            "alias": resolution.alias,
            "canary": resolution.canary,
        }
    if ended.admitted is not None:
        request = ended.admitted.request
        sampling = request.sampling
        known |= {
            "engine_request_id": request.request_id,
            "request_id": ended.admitted.answer.request_id,
            "prompt_tokens": len(request.prompt),
            "max_tokens": request.stopping.max_tokens,
            "n": request.n,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "seed": sampling.seed,
        }
    call = ended.call
    if call is not None:
        relay = call.relay
        known |= {"ledger_id": call.ledger_id, "output_tokens": call.handed}
        if relay.submitted_at is not None:
            known["submitted_s"] = relay.submitted_at - ended.began
        if relay.answered_at is not None:
            known["answered_s"] = relay.answered_at - ended.began
            known |= _started(relay.started)
    if ended.finished is not None:
        known |= _finished(ended.finished)
    return Story(
        **{
            "trace": trace,
            "transport": ended.context.transport,
            "operation": "text_completion",
            "stream": ended.stream,
            "outcome": ended.outcome,
            "code": code,
            "ended_ns": time.time_ns(),
            "ended_s": ended.ended - ended.began,
            "request_id": ended.request_id,
            **known,
        }  # type: ignore[arg-type]  # of each field's own type
    )


def _started(started: Started) -> dict[str, object]:
    return {
        "tier": started.tier,
        "queue_s": started.queue_s,
        "adapter_load_s": started.adapter_load_s,
        "replica": started.provenance.replica,
    }


def _finished(finished: Finished) -> dict[str, object]:
    return {
        "ttft_s": finished.ttft_s,
        "decode_s": finished.decode_s,
        "output_tokens": finished.output_tokens,
        "cached_prompt_tokens": finished.cached_prompt_tokens,
        "finish_reasons": tuple(choice.reason for choice in finished.choices),
    }


__all__ = ["FLUSH_LEAST_S", "Ended", "Watch", "open_watch", "story_of"]
