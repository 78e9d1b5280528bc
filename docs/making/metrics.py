"""docs/metrics.md, of the metrics' catalogue."""

from __future__ import annotations

from lorry.gateway.metrics import ROUTER, SECTIONS, Kind
from lorry.gateway.metrics import Metric as MetricEntry
from lorry.gateway.metrics import Section as MetricSection
from making.markdown import cell, table

_METRICS_HEAD = """\
# Metrics

Generated from `lorry.gateway.metrics.catalog` by `make docs`; do not edit.

`GET /metrics` of the operators' port (`--ops-host`, `--ops-port`, default `127.0.0.1:50062`; no authentication) answers
in Prometheus' text format, or in OpenMetrics where the `Accept` header asks for it: the gateway, and the engines behind
it, labelled by `replica`. Beside what is listed here there are the `process_*` metrics of the gateway's process.
Prometheus adds `job` and `instance`.

Labels never carry an adapter, a key, a user or a request; `tenant` stands on two counters alone. So the number of
series does not grow with use. Counters begin at 0 with the process that counts. Bounds of histograms are in brackets.

[deploy/prometheus](../deploy/prometheus/rules.yml) has alert rules, each with a part of the [runbook](runbook.md), and
an example of a configuration; [deploy/grafana](../deploy/grafana) dashboards of gateway, engines and tenants.

"""


def metrics_page() -> str:
    """Every metric that is served."""
    parts = [_METRICS_HEAD, *(_metrics(section) for section in (*SECTIONS, ROUTER))]
    return "".join(parts).rstrip() + "\n"


def _metrics(section: MetricSection) -> str:
    rows = [
        (
            f"`{metric.name}`",
            _kind(metric),
            ", ".join(f"`{label}`" for label in metric.labels),
            metric.unit,
            cell(metric.help),
        )
        for metric in section.metrics
    ]
    shown = table(("metric", "kind", "labels", "unit", ""), rows)
    return f"## {section.title}\n\n{section.intro}\n\n{shown}\n"


def _kind(metric: MetricEntry) -> str:
    if metric.kind is not Kind.HISTOGRAM:
        return str(metric.kind)
    return f"histogram [{', '.join(f'{bound:g}' for bound in metric.bounds)}]"
