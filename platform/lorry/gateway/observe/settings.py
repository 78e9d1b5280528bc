"""Whether traces are on, and where they go: by flags and by OpenTelemetry's own variables."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from lorry.config import TraceConfig
from lorry.errors import FailedPrecondition, InvalidRequest

REMEDY = "pip install 'lorry[otel]'"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_RATIO_SAMPLERS = ("", "traceidratio", "parentbased_traceidratio")
_NEEDED = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.grpc")


def trace_config(
    endpoint: str | None, ratio: float | None, environ: Mapping[str, str] | None = None
) -> TraceConfig | None:
    """None where neither flag nor variable asks for traces. Raises InvalidRequest for an endpoint that is none or a
    protocol that is not spoken, FailedPrecondition where OpenTelemetry is not installed."""
    found = os.environ if environ is None else environ
    where = "--trace-endpoint"
    if endpoint is None:
        if found.get("OTEL_SDK_DISABLED", "").lower() == "true" or found.get("OTEL_TRACES_EXPORTER") == "none":
            return None
        where = next((name for name in ENDPOINTS if found.get(name)), "")
        if not where:
            return None
        endpoint = found[where]
        protocol = next((found[name] for name in PROTOCOLS if found.get(name)), "grpc")
        if protocol != "grpc":
            raise InvalidRequest.field(PROTOCOLS[1], f"{protocol[:40]!r} is not spoken here; use grpc (port 4317)")
    _check_endpoint(where, endpoint)
    if not installed():
        raise FailedPrecondition(
            f"{where}: traces need OpenTelemetry, which is not installed; {REMEDY}, or leave it out"
        )
    return TraceConfig(endpoint, _ratio(found) if ratio is None else ratio)


def installed() -> bool:
    """Whether the extra is; imports none of it but its namespaces."""
    try:
        return all(importlib.util.find_spec(name) is not None for name in _NEEDED)
    except ModuleNotFoundError:
        return False


def _check_endpoint(where: str, endpoint: str) -> None:
    try:
        url = urlsplit(endpoint)
        good = url.scheme in ("http", "https") and bool(url.hostname) and (url.port is None or url.port > 0)
    except ValueError:
        good, url = False, urlsplit("")
    if not good or "@" in url.netloc or not endpoint.isprintable():
        raise InvalidRequest.field(where, "not the address of a collector; use http://HOST:4317, or https for TLS")


def _ratio(environ: Mapping[str, str]) -> float:
    """Of ``OTEL_TRACES_SAMPLER_ARG``; all where it says nothing."""
    sampler, text = environ.get("OTEL_TRACES_SAMPLER", ""), environ.get("OTEL_TRACES_SAMPLER_ARG", "")
    if sampler in ("always_off", "parentbased_always_off"):
        return 0.0
    if sampler not in _RATIO_SAMPLERS or not text:
        return 1.0
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio <= 1:
        raise InvalidRequest.field("OTEL_TRACES_SAMPLER_ARG", f"{text[:40]!r} is not a part of all; use 0 to 1")
    return ratio


__all__ = ["ENDPOINTS", "PROTOCOLS", "REMEDY", "installed", "trace_config"]
