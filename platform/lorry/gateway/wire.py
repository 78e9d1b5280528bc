"""Engine events and resolutions as ``lorry.api.v1`` messages: the one place that maps them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lorry.api.v1 import generate_pb2 as pb
from lorry.engine.contract import ChoiceEnd, Finished, Provenance, Started
from lorry.errors import InternalError
from lorry.gateway.pieces import Piece
from lorry.registry.snapshot import Resolution
from lorry.request import TokenLogprobs

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
    """What every message of one answer needs to know. ``token_ids``: whether the client asked for them. Logprobs are
    there only where it did."""

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
        prompt_logprobs=_logprobs(started.prompt_logprobs),
    )


def delta(answer: Answer, piece: Piece) -> pb.Delta | None:
    """None where there is nothing that this client wants."""
    ids = piece.token_ids if answer.token_ids else ()
    if not (piece.text or ids or piece.logprobs):
        return None
    made = pb.Delta(choice=piece.choice, text=piece.text)
    if ids:
        made.token_ids.extend(ids)
    if piece.logprobs:
        made.logprobs.extend(_logprobs(piece.logprobs))
    return made


def end(answer: Answer, started: Started, finished: Finished, ledger_id: str) -> pb.StreamEnd:
    return pb.StreamEnd(
        choices=[
            pb.ChoiceEnd(
                index=index,
                finish_reason=_reason(ended),
                matched_stop=ended.matched_stop,
                matched_stop_id=ended.matched_stop_id,
                output_tokens=ended.output_tokens,
            )
            for index, ended in enumerate(finished.choices)
        ],
        model=resolved_model(answer.resolution, finished.provenance),
        usage=_usage(finished, ledger_id),
        timings=_timings(started, finished) if answer.timings else None,
    )


def response(
    answer: Answer, started: Started, pieces: Sequence[Piece], finished: Finished, ledger_id: str
) -> pb.GenerateResponse:
    """``pieces``: the whole of each choice that has tokens."""
    whole = {piece.choice: piece for piece in pieces}
    return pb.GenerateResponse(
        request_id=answer.request_id,
        model=resolved_model(answer.resolution, finished.provenance),
        choices=[
            _choice(answer, whole.get(index, Piece(index)), ended) for index, ended in enumerate(finished.choices)
        ],
        usage=_usage(finished, ledger_id),
        timings=_timings(started, finished) if answer.timings else None,
        effective=answer.effective,
        prompt_logprobs=_logprobs(started.prompt_logprobs),
    )


def _choice(answer: Answer, piece: Piece, ended: ChoiceEnd) -> pb.Choice:
    return pb.Choice(
        index=piece.choice,
        text=piece.text,
        token_ids=piece.token_ids if answer.token_ids else (),
        finish_reason=_reason(ended),
        matched_stop=ended.matched_stop,
        matched_stop_id=ended.matched_stop_id,
        logprobs=_logprobs(piece.logprobs),
        output_tokens=ended.output_tokens,
    )


def _logprobs(found: Sequence[TokenLogprobs]) -> list[pb.TokenLogprobs]:
    return [
        pb.TokenLogprobs(
            token_id=one.token_id,
            logprob=one.logprob,
            top=[pb.TopLogprob(token_id=token, logprob=logprob) for token, logprob in one.top],
        )
        for one in found
    ]


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
        pinned=resolution.pinned,
        registry_epoch=resolution.epoch,
    )


def model(resolution: Resolution, name: str, aliases: Iterable[str], created_at: float) -> pb.Model:
    """``created_at``: Unix seconds, 0 where the registry does not say."""
    base = resolution.base
    made = pb.Model(
        name=name,
        base=base.resource,
        version=resolution.version,
        sha256=resolution.sha256,
        base_sha256=base.base_digest,
        tokenizer_sha256=resolution.tokenizer_sha256,
        context_tokens=base.context_tokens,
        aliases=aliases,
    )
    if created_at:
        made.create_time.FromNanoseconds(round(created_at * 1e9))
    return made


def _reason(ended: ChoiceEnd) -> pb.FinishReason.ValueType:
    try:
        return _REASONS[ended.reason]
    except KeyError:
        raise InternalError(f"reason: the engine ended with {ended.reason!r}, which is none") from None


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
