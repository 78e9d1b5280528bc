"""The engine contract's dataclasses as ``lorry.internal.v1`` messages, and back. No grpc."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lorry.adapters.manifest import AdapterFile, AdapterRef
from lorry.adapters.plan import TextPlan
from lorry.engine.contract import (
    ChoiceEnd,
    EngineEvent,
    EngineInfo,
    EngineRequest,
    Finished,
    Provenance,
    Started,
    Tokens,
)
from lorry.errors import FieldViolation, InternalError, InvalidRequest, LorryError, by_reason
from lorry.ids import AdapterDigest, AdapterKey, AdapterScope, BaseDigest, RequestId, TenantId
from lorry.internal.v1 import engine_pb2 as pb
from lorry.request import OutputParams, SamplingParams, StoppingParams, TokenLogprobs

_Named = pb.GetWhereaboutsRequest | pb.EvictRequest | pb.ForgetRequest
_SOON_S = 1e-9
"""On the wire a time of 0 is "no limit", so the shortest limit is this."""


def request_to_proto(request: EngineRequest, call: int) -> pb.EngineRequest:
    """``call`` is this request's number within its stream. Raises ValueError or TypeError for what has no encoding."""
    sampling, stopping = request.sampling, request.stopping
    message = pb.EngineRequest(
        request_id=request.request_id,
        tenant_id=request.tenant,
        prompt_token_ids=request.prompt,
        base_sha256=request.base,
        sampling=pb.Sampling(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            seed=sampling.seed,
            repetition_penalty=sampling.repetition_penalty,
            frequency_penalty=sampling.frequency_penalty,
            presence_penalty=sampling.presence_penalty,
            logit_bias=[pb.LogitBias(token_id=token, bias=bias) for token, bias in sampling.logit_bias],
        ),
        stopping=pb.Stopping(
            max_tokens=stopping.max_tokens,
            min_tokens=stopping.min_tokens,
            stop=stopping.stop,
            stop_token_ids=stopping.stop_token_ids,
            include_stop=stopping.include_stop,
            ignore_eos=stopping.ignore_eos,
        ),
        deadline_seconds=_limit(request.deadline_s),
        queue_timeout_seconds=_limit(request.queue_timeout_s),
        reject_cold=request.reject_cold,
        call=call,
        ttft_timeout_seconds=_limit(request.ttft_timeout_s),
        priority=request.priority,
        n=request.n,
        output=pb.Output(
            top_logprobs=request.output.top_logprobs,
            prompt_logprobs=request.output.prompt_logprobs,
        ),
        cache_salt=request.cache_salt,
        cache_scope=request.cache_scope,
        vocabulary=request.vocabulary,
        weight=request.weight,
    )
    if request.text is not None:
        text = request.text
        message.text.CopyFrom(pb.VersionText(sha256=text.sha256, vocabulary=text.vocabulary, end_ids=text.end_ids))
    if request.adapter is not None:
        message.adapter.CopyFrom(ref_to_proto(request.adapter))
    return message


def ref_to_proto(ref: AdapterRef) -> pb.AdapterVersionRef:
    files = [pb.AdapterFile(path=file.path, size=file.size, sha256=file.sha256) for file in ref.files]
    return pb.AdapterVersionRef(sha256=ref.digest, prefix=ref.prefix, files=files, scope=ref.scope)


def key_from_proto(message: pb.AdapterVersionRef | _Named) -> AdapterKey:
    """Raises InvalidRequest for an empty scope, which a gateway of an older release sends: all that it names would have
    one copy for equal bytes, and whoever asks for it could tell that others have them."""
    if not message.scope:
        raise InvalidRequest.field(
            "adapter.scope", "empty; it says whose copy of the bytes is meant. Run a gateway of the engine's release"
        )
    return AdapterKey(AdapterDigest(message.sha256), AdapterScope(message.scope))


def ref_from_proto(message: pb.AdapterVersionRef) -> AdapterRef:
    """Raises what ``key_from_proto`` raises."""
    key = key_from_proto(message)
    files = tuple(AdapterFile(file.path, file.size, file.sha256) for file in message.files)
    return AdapterRef(key.digest, message.prefix, files, key.scope)


def request_from_proto(message: pb.EngineRequest) -> EngineRequest:
    """Raises what ``key_from_proto`` raises."""
    sampling, stopping, output = message.sampling, message.stopping, message.output
    adapter = text = None
    if message.HasField("text"):
        text = TextPlan(message.text.sha256, message.text.vocabulary, tuple(message.text.end_ids))
    if message.HasField("adapter"):
        adapter = ref_from_proto(message.adapter)
    return EngineRequest(
        RequestId(message.request_id),
        TenantId(message.tenant_id),
        tuple(message.prompt_token_ids),
        adapter,
        BaseDigest(message.base_sha256),
        SamplingParams(
            sampling.temperature,
            sampling.top_p,
            sampling.top_k,
            sampling.min_p,
            sampling.seed,
            sampling.repetition_penalty or 1.0,
            sampling.frequency_penalty,
            sampling.presence_penalty,
            tuple((one.token_id, one.bias) for one in sampling.logit_bias),
        ),
        StoppingParams(
            stopping.max_tokens,
            stopping.min_tokens,
            tuple(stopping.stop),
            tuple(stopping.stop_token_ids),
            stopping.include_stop,
            stopping.ignore_eos,
        ),
        message.deadline_seconds or None,
        message.queue_timeout_seconds or None,
        message.reject_cold,
        message.ttft_timeout_seconds or None,
        message.priority,
        message.n or 1,
        OutputParams(
            output.top_logprobs if output.HasField("top_logprobs") else None,
            output.prompt_logprobs if output.HasField("prompt_logprobs") else None,
        ),
        message.cache_salt,
        message.cache_scope,
        message.vocabulary if message.HasField("vocabulary") else None,
        text,
        message.weight or 1,
    )


def add_event(output: pb.StepOutput, event: EngineEvent) -> None:
    """Puts one more event of the same request into ``output``."""
    if isinstance(event, Tokens):
        into = output if event.choice == 0 else _choice_output(output, event.choice)
        into.token_ids.extend(event.token_ids)
        into.text += event.text
        if event.logprobs:
            into.logprobs.extend(_logprobs_to_proto(event.logprobs))
    elif isinstance(event, Started):
        output.started.CopyFrom(
            pb.Started(
                provenance=_provenance_to_proto(event.provenance),
                tier=event.tier,
                queue_seconds=event.queue_s,
                adapter_load_seconds=event.adapter_load_s,
                prompt_logprobs=_logprobs_to_proto(event.prompt_logprobs),
            )
        )
    else:
        output.finished.CopyFrom(
            pb.Finished(
                provenance=_provenance_to_proto(event.provenance),
                choices=[
                    pb.ChoiceEnd(
                        reason=end.reason,
                        matched_stop=end.matched_stop,
                        matched_stop_id=end.matched_stop_id,
                        output_tokens=end.output_tokens,
                    )
                    for end in event.choices
                ],
                prompt_tokens=event.prompt_tokens,
                output_tokens=event.output_tokens,
                cached_prompt_tokens=event.cached_prompt_tokens,
                prefill_seconds=event.prefill_s,
                ttft_seconds=event.ttft_s,
                decode_seconds=event.decode_s,
                max_distinct_adapters=event.max_distinct_adapters,
                min_distinct_adapters=event.min_distinct_adapters,
            )
        )


def events_from_proto(output: pb.StepOutput) -> list[EngineEvent]:
    """The events of one output, in order, the tokens of each choice as one event. ``output.error`` is not an event: see
    ``error_from_proto``."""
    events: list[EngineEvent] = []
    if output.HasField("started"):
        events.append(_started_from_proto(output.started))
    ids, text = tuple(output.token_ids), output.text
    if ids or text:
        events.append(Tokens(ids, text, 0, _logprobs_from_proto(output.logprobs)))
    for more in output.choices:
        events.append(Tokens(tuple(more.token_ids), more.text, more.choice, _logprobs_from_proto(more.logprobs)))
    if output.HasField("finished"):
        events.append(_finished_from_proto(output.finished))
    return events


def _started_from_proto(started: pb.Started) -> Started:
    return Started(
        _provenance_from_proto(started.provenance),
        started.tier,
        started.queue_seconds,
        started.adapter_load_seconds,
        _logprobs_from_proto(started.prompt_logprobs),
    )


def _finished_from_proto(done: pb.Finished) -> Finished:
    return Finished(
        _provenance_from_proto(done.provenance),
        tuple(
            ChoiceEnd(
                end.reason,
                end.matched_stop,
                end.matched_stop_id if end.HasField("matched_stop_id") else None,
                end.output_tokens,
            )
            for end in done.choices
        ),
        done.prompt_tokens,
        done.output_tokens,
        done.cached_prompt_tokens,
        done.prefill_seconds,
        done.ttft_seconds,
        done.decode_seconds,
        done.max_distinct_adapters,
        done.min_distinct_adapters,
    )


def error_to_proto(error: LorryError) -> pb.EngineError:
    return pb.EngineError(
        reason=error.reason,
        message=error.message,
        metadata=error.metadata,
        retry_after_seconds=error.retry_after_s or 0.0,
        violations=[pb.Violation(field=v.field, description=v.description) for v in error.violations],
    )


def error_from_proto(message: pb.EngineError) -> LorryError:
    """The class by its reason; InternalError for a reason that this build does not know."""
    return by_reason().get(message.reason, InternalError)(
        message.message,
        metadata=dict(message.metadata),
        violations=[FieldViolation(v.field, v.description) for v in message.violations],
        retry_after_s=message.retry_after_seconds or None,
    )


def info_to_proto(info: EngineInfo) -> pb.GetInfoResponse:
    return pb.GetInfoResponse(
        base_sha256=info.base,
        tokenizer_sha256=info.tokenizer_sha256,
        dtype=info.dtype,
        engine_build=info.engine_build,
        replica=info.replica,
        context_tokens=info.context_tokens,
        vocabulary=info.vocabulary,
        max_sequences=info.max_sequences,
        base_dir=str(info.base_dir),
        max_rank=info.max_rank,
        max_extra_bytes=info.max_extra_bytes,
    )


def info_from_proto(message: pb.GetInfoResponse) -> EngineInfo:
    return EngineInfo(
        BaseDigest(message.base_sha256),
        message.tokenizer_sha256,
        message.dtype,
        message.engine_build,
        message.replica,
        message.context_tokens,
        message.vocabulary,
        message.max_sequences,
        Path(message.base_dir),
        message.max_rank,
        message.max_extra_bytes,
    )


def _choice_output(output: pb.StepOutput, choice: int) -> pb.ChoiceOutput:
    """The one part of ``output`` that is this choice's. There are few choices, so a search is quicker than an index."""
    for found in output.choices:
        if found.choice == choice:
            return found
    return output.choices.add(choice=choice)


def _logprobs_to_proto(logprobs: Sequence[TokenLogprobs]) -> list[pb.TokenLogprobs]:
    return [
        pb.TokenLogprobs(
            token_id=one.token_id,
            logprob=one.logprob,
            top_ids=[token for token, _ in one.top],
            top_logprobs=[logprob for _, logprob in one.top],
        )
        for one in logprobs
    ]


def _logprobs_from_proto(messages: Sequence[pb.TokenLogprobs]) -> tuple[TokenLogprobs, ...]:
    if not messages:
        return ()  # as a rule: of every token of every answer
    return tuple(
        TokenLogprobs(one.token_id, one.logprob, tuple(zip(one.top_ids, one.top_logprobs, strict=True)))
        for one in messages
    )


def _limit(seconds: float | None) -> float:
    return 0.0 if seconds is None else max(seconds, _SOON_S)


def _provenance_to_proto(provenance: Provenance) -> pb.Provenance:
    return pb.Provenance(
        adapter_sha256=provenance.adapter or "",
        base_sha256=provenance.base,
        tokenizer_sha256=provenance.tokenizer_sha256,
        dtype=provenance.dtype,
        engine_build=provenance.engine_build,
        replica=provenance.replica,
    )


def _provenance_from_proto(message: pb.Provenance) -> Provenance:
    return Provenance(
        AdapterDigest(message.adapter_sha256) if message.adapter_sha256 else None,
        BaseDigest(message.base_sha256),
        message.tokenizer_sha256,
        message.dtype,
        message.engine_build,
        message.replica,
    )


__all__ = [
    "add_event",
    "error_from_proto",
    "error_to_proto",
    "events_from_proto",
    "info_from_proto",
    "info_to_proto",
    "key_from_proto",
    "ref_from_proto",
    "ref_to_proto",
    "request_from_proto",
    "request_to_proto",
]
