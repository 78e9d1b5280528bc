"""When traces are on: by flag, by OpenTelemetry's variables, and never by accident."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from lorry.cli.app import main
from lorry.config import TraceConfig
from lorry.errors import FailedPrecondition, InvalidRequest
from lorry.gateway.observe import trace_config

URL = "http://collector:4317"
GENERAL, TRACES = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"


def test_off_by_default() -> None:
    assert trace_config(None, None, {}) is None
    assert trace_config(None, 0.5, {}) is None


def test_flags_and_variables() -> None:
    assert trace_config(URL, None, {}) == TraceConfig(URL, 1.0)
    assert trace_config(URL, 0.5, {GENERAL: "http://other:1"}) == TraceConfig(URL, 0.5)
    assert trace_config(None, None, {GENERAL: URL}) == TraceConfig(URL)
    assert trace_config(None, None, {GENERAL: "http://other:1", TRACES: URL}) == TraceConfig(URL)
    assert trace_config("https://collector", None, {}) == TraceConfig("https://collector")
    arguments = {GENERAL: URL, "OTEL_TRACES_SAMPLER_ARG": "0.25"}
    assert trace_config(None, None, arguments) == TraceConfig(URL, 0.25)
    assert trace_config(None, 1.0, arguments) == TraceConfig(URL, 1.0)
    assert trace_config(URL, None, {"OTEL_TRACES_SAMPLER": "always_off"}) == TraceConfig(URL, 0.0)
    for off in ({"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}):
        assert trace_config(None, None, {GENERAL: URL, **off}) is None


@pytest.mark.parametrize(
    "url", ["", "collector:4317", "ftp://x", "http://", "http://x:99999", "http://u:p@x", "http://[x"]
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(InvalidRequest, match="--trace-endpoint") as caught:
        trace_config(url, None, {})
    assert "u:p" not in str(caught.value)


def test_what_is_not_spoken_or_no_ratio() -> None:
    with pytest.raises(InvalidRequest, match="use grpc"):
        trace_config(None, None, {GENERAL: URL, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"})
    for text in ("2", "x", "nan"):
        with pytest.raises(InvalidRequest, match="SAMPLER_ARG"):
            trace_config(URL, None, {"OTEL_TRACES_SAMPLER_ARG": text})


def test_without_the_extra_it_is_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name.startswith("opentelemetry") else real(name, *more)
    )
    with pytest.raises(FailedPrecondition, match=r"--trace-endpoint: .* pip install 'lorry\[otel\]'"):
        trace_config(URL, None, {})
    assert trace_config(None, None, {}) is None
    for name in (GENERAL, TRACES):
        monkeypatch.delenv(name, raising=False)
    assert main(["serve", "--home", str(tmp_path / "home"), "--trace-endpoint", URL, "--port", "0"]) == 1
    assert "pip install 'lorry[otel]'" in capsys.readouterr().err
    assert not (tmp_path / "home").exists(), "nothing was begun"
