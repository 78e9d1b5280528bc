"""The ``lorry`` object of an answer: which weights gave it, by which parameters, what it cost and how long it took."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from lorry.api.v1 import generate_pb2 as pb

_PREFIXES = {"AdapterTier": "ADAPTER_TIER_", "MaxTokensSource": "MAX_TOKENS_SOURCE_", "FinishReason": "FINISH_REASON_"}


def plain(message: Message) -> dict[str, Any]:
    """Every field of a flat message under its proto's name, numbers as numbers, enum values as lower-case words."""
    return {field.name: _value(field, getattr(message, field.name)) for field in message.DESCRIPTOR.fields}


def _value(field: Any, value: Any) -> Any:
    if field.enum_type is None:
        return value
    name = field.enum_type.values_by_number[value].name
    return str(name).removeprefix(_PREFIXES[field.enum_type.name]).lower()


def begun(start: pb.StreamStart) -> dict[str, Any]:
    """Of the first chunk."""
    return {"request_id": start.request_id, "model": plain(start.model), "effective": plain(start.effective)}


def ended(end: pb.StreamEnd) -> dict[str, Any]:
    """Of the last chunk."""
    return {
        "model": plain(end.model),
        "ledger_id": end.usage.ledger_id,
        "choices": [_stopped(one) for one in end.choices],
        "timings": plain(end.timings),
    }


def whole(answer: pb.GenerateResponse) -> dict[str, Any]:
    return {
        "request_id": answer.request_id,
        "model": plain(answer.model),
        "effective": plain(answer.effective),
        "ledger_id": answer.usage.ledger_id,
        "choices": [_stopped(one) for one in answer.choices],
        "timings": plain(answer.timings),
    }


def headers(model: pb.ResolvedModel) -> list[tuple[bytes, bytes]]:
    """``x-lorry-sha256`` is what ``expected_sha256`` would ask for: the version's digest, or the base's."""
    name = f"{model.adapter}/versions/{model.version}" if model.adapter else model.base
    return [
        (b"x-lorry-model", name.encode()),
        (b"x-lorry-sha256", (model.sha256 or model.base_sha256).encode()),
    ]


def usage(found: pb.Usage) -> dict[str, Any]:
    """OpenAI's."""
    return {
        "prompt_tokens": found.prompt_tokens,
        "completion_tokens": found.output_tokens,
        "total_tokens": found.prompt_tokens + found.output_tokens,
        "prompt_tokens_details": {"cached_tokens": found.cached_prompt_tokens},
    }


def _stopped(choice: pb.Choice | pb.ChoiceEnd) -> dict[str, Any]:
    """What stopped a choice, beyond OpenAI's ``finish_reason``."""
    stop_id = choice.matched_stop_id if choice.HasField("matched_stop_id") else None
    return {
        "index": choice.index,
        "output_tokens": choice.output_tokens,
        "matched_stop": choice.matched_stop or None,
        "matched_stop_id": stop_id,
    }


__all__ = ["begun", "ended", "headers", "plain", "usage", "whole"]
