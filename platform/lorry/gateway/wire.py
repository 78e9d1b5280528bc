"""Engine events and resolutions as ``lorry.api.v1`` messages: the one place that maps them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lorry.api.v1 import generate_pb2 as pb
from lorry.engine.contract import Finished, Provenance, Started
from lorry.errors import InternalError
from lorry.registry.snapshot import Resolution

_TIERS = {
    "base": pb.ADAPTER_TIER_BASE,
    "device": pb.ADAPTER_TIER_DEVICE,
    "host": pb.ADAPTER_TIER_HOST,
    "disk": pb.ADAPTER_TIER_DISK,
    "object_store": pb.ADAPTER_TIER_OBJECT_STORE,
}
_REASONS = {"stop": pb.FINISH_REASON_STOP, "length": pb.FINISH_REASON_LENGTH}


@dataclass(frozen=True, slots=True)
class Answer:
    """What every message of one answer needs to know. ``token_ids``: whether the client asked for them."""

    request_id: str
    resolution: Resolution
    effective: pb.EffectiveParams
    prompt_tokens: int
    token_ids: bool
    timings: bool


def start(answer: Answer, started: Started) -> pb.StreamStart:
    return pb.StreamStart(
        request_id=answer.request_id,
        model=resolved_model(answer.resolution, started.provenance),
        effective=answer.effective,
        prompt_tokens=answer.prompt_tokens,
    )


def delta(answer: Answer, ids: Sequence[int], text: str) -> pb.Delta | None:
    """None where there is nothing that this client wants."""
    if not text and not (ids and answer.token_ids):
        return None
    return pb.Delta(text=text, token_ids=ids if answer.token_ids else ())


def end(answer: Answer, started: Started, finished: Finished, ledger_id: str) -> pb.StreamEnd:
    choice = pb.ChoiceEnd(finish_reason=_reason(finished), matched_stop=finished.matched_stop)
    if finished.matched_stop_id is not None:
        choice.matched_stop_id = finished.matched_stop_id
    return pb.StreamEnd(
        choices=[choice],
        model=resolved_model(answer.resolution, finished.provenance),
        usage=_usage(finished, ledger_id),
        timings=_timings(started, finished) if answer.timings else None,
    )


def response(
    answer: Answer, started: Started, ids: Sequence[int], text: str, finished: Finished, ledger_id: str
) -> pb.GenerateResponse:
    choice = pb.Choice(
        text=text,
        token_ids=ids if answer.token_ids else (),
        finish_reason=_reason(finished),
        matched_stop=finished.matched_stop,
    )
    if finished.matched_stop_id is not None:
        choice.matched_stop_id = finished.matched_stop_id
    return pb.GenerateResponse(
        request_id=answer.request_id,
        model=resolved_model(answer.resolution, finished.provenance),
        choices=[choice],
        usage=_usage(finished, ledger_id),
        timings=_timings(started, finished) if answer.timings else None,
        effective=answer.effective,
    )


def resolved_model(resolution: Resolution, stated: Provenance) -> pb.ResolvedModel:
    """Digests, dtype, build and replica are the engine's words; names, alias and epoch the gateway's."""
    return pb.ResolvedModel(
        adapter=resolution.adapter,
        version=resolution.version,
        sha256=stated.adapter or "",
        base=resolution.base.resource,
        base_sha256=stated.base,
        tokenizer_sha256=stated.tokenizer_sha256,
        dtype=stated.dtype,
        engine_build=stated.engine_build,
        replica=stated.replica,
        alias=resolution.alias,
        canary=resolution.canary,
        registry_epoch=resolution.epoch,
    )


def model(resolution: Resolution, name: str) -> pb.Model:
    base = resolution.base
    return pb.Model(
        name=name,
        base=base.resource,
        version=resolution.version,
        sha256=resolution.sha256,
        base_sha256=base.base_digest,
        tokenizer_sha256=base.tokenizer_sha256,
        context_tokens=base.context_tokens,
    )


def _reason(finished: Finished) -> pb.FinishReason.ValueType:
    try:
        return _REASONS[finished.reason]
    except KeyError:
        raise InternalError(f"reason: the engine ended with {finished.reason!r}, which is none") from None


def _usage(finished: Finished, ledger_id: str) -> pb.Usage:
    return pb.Usage(
        prompt_tokens=finished.prompt_tokens,
        output_tokens=finished.output_tokens,
        cached_prompt_tokens=finished.cached_prompt_tokens,
        ledger_id=ledger_id,
    )


def _timings(started: Started, finished: Finished) -> pb.Timings:
    return pb.Timings(
        queue_seconds=started.queue_s,
        adapter_load_seconds=started.adapter_load_s,
        prefill_seconds=finished.prefill_s,
        ttft_seconds=finished.ttft_s,
        decode_seconds=finished.decode_s,
        adapter_tier=_TIERS.get(started.tier, pb.ADAPTER_TIER_UNSPECIFIED),
        max_distinct_adapters=finished.max_distinct_adapters,
        min_distinct_adapters=finished.min_distinct_adapters,
    )


__all__ = ["Answer", "delta", "end", "model", "resolved_model", "response", "start"]
