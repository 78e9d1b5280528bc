"""Lorry's own fields beside OpenAI's: clients send them as ``extra_body``."""

from __future__ import annotations

from typing import Literal

from lorry.api.v1 import generate_pb2 as pb
from lorry.gateway.checks import Violations
from lorry.gateway.http.fields import UINT32_MAX, Fields, is_whole, set_if, shown

_COLD_LOAD = {"wait": pb.COLD_LOAD_WAIT, "reject": pb.COLD_LOAD_REJECT}
_TIMEOUT_MAX_S = 1e6
"""Room for the check that counts, which is behind the service layer."""


def read_extensions(fields: Fields, message: pb.GenerateRequest, bad: Violations, own: dict[str, str]) -> None:
    """``user`` too, which is one of OpenAI's: it keeps a user on one target of an alias, and is a label. ``own`` gets
    the names that the client used."""
    sampling, stopping = message.sampling, message.stopping
    set_if(sampling, "top_k", fields.whole("top_k"))
    for name in ("min_p", "repetition_penalty", "typical_p"):
        set_if(sampling, name, fields.number(name))
    set_if(stopping, "min_tokens", fields.whole("min_tokens"))
    for name in ("ignore_eos", "include_stop"):
        set_if(stopping, name, fields.flag(name))
    _read_ids(fields, stopping)
    set_if(message.output, "token_ids", fields.flag("return_token_ids"))
    set_if(message, "priority", fields.whole("priority", -(1 << 31), (1 << 31) - 1))
    for name in ("expected_sha256", "cache_scope"):
        setattr(message, name, fields.text(name) or "")
    message.cold_load = fields.choice("cold_load", _COLD_LOAD) or pb.COLD_LOAD_UNSPECIFIED
    _read_timeout(fields, message, "queue_timeout")
    _read_timeout(fields, message, "ttft_timeout")
    _read_labels(fields, message, bad)
    user, sticky = fields.text("user"), fields.text("sticky_key")
    if user:
        if "user" not in message.labels:
            message.labels["user"] = user
            own["labels[user]"] = "user"
        if not sticky:
            own["sticky_key"] = "user"
    message.sticky_key = sticky or user or ""


def _read_ids(fields: Fields, stopping: pb.StoppingParams) -> None:
    for at, one in enumerate(fields.list("stop_token_ids") or ()):
        if is_whole(one) and 0 <= one <= UINT32_MAX:
            stopping.stop_token_ids.append(one)
        else:
            fields.refuse(f"stop_token_ids[{at}]", f"{shown(one)}; send a token id")
            return


def _read_timeout(fields: Fields, message: pb.GenerateRequest, name: Literal["queue_timeout", "ttft_timeout"]) -> None:
    """Seconds."""
    seconds = fields.number(name)
    if seconds is None:
        return
    if abs(seconds) <= _TIMEOUT_MAX_S:
        getattr(message, name).FromNanoseconds(round(seconds * 1e9))
        getattr(message, name).SetInParent()
    else:
        fields.refuse(name, f"{seconds:g} s; send more than 0 s and at most a day")


def _read_labels(fields: Fields, message: pb.GenerateRequest, bad: Violations) -> None:
    for key, value in (fields.object("labels") or {}).items():
        if isinstance(value, str):
            message.labels[key] = value
        else:
            bad.add(f"labels[{key[:80]}]", f"{shown(value)}; send a string")


__all__ = ["read_extensions"]
