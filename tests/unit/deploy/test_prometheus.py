"""Rules and dashboards: promtool takes them, each alert fires on what it is about, and every metric that they name is
served with the labels that they name."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.utils import floatToGoString

from lorry.gateway.metrics import ROUTER, SECTIONS

ROOT = Path(__file__).parents[3]
PROMETHEUS, GRAFANA = ROOT / "deploy" / "prometheus", ROOT / "deploy" / "grafana"
DASHBOARDS = sorted(GRAFANA.glob("*.json"))
BY_PROMETHEUS = {"job", "instance", "le"}
SERVED = {
    name: {*metric.labels, *BY_PROMETHEUS} for section in (*SECTIONS, ROUTER) for metric in section.metrics
    for name in metric.series
} | {name: BY_PROMETHEUS for name in ("up", "process_cpu_seconds_total", "process_resident_memory_bytes")}  # fmt: skip
BOUNDS = {
    f"{metric.name}_bucket": {*map(floatToGoString, metric.bounds), "+Inf"}
    for section in SECTIONS
    for metric in section.metrics
}
WORDS = {
    "and", "or", "unless", "by", "without", "on", "ignoring", "group_left", "group_right", "bool", "offset", "time",
    "rate", "increase", "sum", "max", "min", "avg", "count", "topk", "histogram_quantile", "label_values", "inf", "nan",
}  # fmt: skip


def promtool(*arguments: str) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed; on Debian: apt-get install prometheus")
    ran = subprocess.run(["promtool", *arguments], cwd=PROMETHEUS, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def rules() -> list[dict[str, Any]]:
    found = yaml.safe_load((PROMETHEUS / "rules.yml").read_text(encoding="utf-8"))
    return [rule for group in found["groups"] for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def expressions(path: Path) -> Iterator[str]:
    """Of a dashboard: queries, and where its variables take their values from."""
    found = json.loads(path.read_text(encoding="utf-8"))
    for panel in found["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    for variable in found["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def uses(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Every metric in an expression, with the labels that its selector names."""
    text = re.sub(r"\[[^\]]*\]", "", expression)
    text = re.sub(r"\b(?:by|ignoring|on|without|group_left)\s*\([^)]*\)", " ", text)
    text = re.sub(r"(label_values\([^,]*(?:\{[^}]*\})?), \w+\)", r"\1)", text)
    for name, selector in re.findall(r"([a-zA-Z_:][\w:]*)\s*(\{[^}]*\})?", re.sub(r"\b[\d.]+\b", " ", text)):
        if name not in WORDS:
            yield name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", re.sub(r'"[^"]*"', '""', selector)))


def grouped(expression: str) -> set[str]:
    return {
        label.strip()
        for labels in re.findall(r"\b(?:by|ignoring|on)\s*\(([^)]*)\)", expression)
        for label in labels.split(",")
    }


def check(expression: str, recorded: set[str]) -> None:
    known: set[str] = set()
    for name, labels in uses(expression):
        if name in recorded:
            known |= BY_PROMETHEUS
            continue
        assert name in SERVED, f"{name} is not served: {expression}"
        assert labels <= SERVED[name], f"{name} has no {labels - SERVED[name]}: {expression}"
        known |= SERVED[name]
    for name, bound in re.findall(r'(\w+_bucket)\{[^}]*\ble="([^"]*)"', expression):
        assert bound in BOUNDS[name], f"{name} has no bound {bound}: {expression}"
    assert known, f"no metric: {expression}"
    assert grouped(expression) <= known, f"nothing here has {grouped(expression) - known}: {expression}"


def test_the_check_finds_what_is_not_there() -> None:
    for wrong in (
        "rate(lorry_gateway_request_total[5m])",
        'sum by (job) (rate(lorry_gateway_requests_total{status="500"}[5m]))',
        "sum by (tenant) (rate(lorry_gateway_requests_total[5m]))",
        "lorry_gateway_ttft_seconds",
        'rate(lorry_gateway_ttft_seconds_bucket{le="2"}[5m])',
        "1 + 1",
    ):
        with pytest.raises(AssertionError):
            check(wrong, set())


def test_promtool_takes_the_rules_and_the_configuration() -> None:
    promtool("check", "rules", "rules.yml")
    promtool("check", "config", "prometheus.yml")


def test_alerts_fire_on_what_they_are_about() -> None:
    promtool("test", "rules", "rules_test.yml")


def test_every_alert_has_a_test_in_which_it_fires() -> None:
    found = yaml.safe_load((PROMETHEUS / "rules_test.yml").read_text(encoding="utf-8"))
    fired = {one["alertname"] for test in found["tests"] for one in test["alert_rule_test"] if one["exp_alerts"]}
    assert fired == {alert["alert"] for alert in alerts()}


def test_every_metric_of_the_rules_is_served() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for rule in rules():
        check(rule["expr"], recorded)


def test_every_alert_names_a_part_of_the_runbook_and_says_how_bad_it_is() -> None:
    runbook = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
    anchors = {
        re.sub(r"[^\w\- ]", "", line[3:].lower()).replace(" ", "-")
        for line in runbook.splitlines()
        if line[:3] == "## "
    }
    named = set()
    for alert in alerts():
        path, _, anchor = alert["annotations"]["runbook"].partition("#")
        assert path == "docs/runbook.md"
        named.add(anchor)
        assert alert["annotations"]["summary"]
        assert alert["labels"]["severity"] in ("page", "ticket")
    assert named == anchors, "a part for each alert, and none for what is no alert"


def test_metrics_that_the_runbook_names_are_served() -> None:
    text = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
    names = set(re.findall(r"\blorry_[a-z0-9_]+", text))
    known = set(SERVED) | {metric.name for section in SECTIONS for metric in section.metrics}
    assert names - known == set()


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_every_metric_of_a_dashboard_is_served(path: Path) -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    found = list(expressions(path))
    assert len(found) > 5
    for expression in found:
        check(expression, recorded)


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboards_queries_are_promql(path: Path, tmp_path: Path) -> None:
    """promtool parses them as rules, their variables replaced."""
    groups = [
        {"record": f"check:{at}", "expr": re.sub(r"\$__\w+", "5m", expression).replace("$", "x")}
        for at, expression in enumerate(expressions(path))
        if not expression.startswith("label_values")
    ]
    rules_file = tmp_path / "rules.yml"
    rules_file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": groups}]}), encoding="utf-8")
    promtool("check", "rules", str(rules_file))


def test_dashboards_cover_the_gateway_the_engines_and_tenants() -> None:
    assert [path.stem for path in DASHBOARDS] == ["lorry-engine", "lorry-gateway", "lorry-tenants"]
    for path in DASHBOARDS:
        found = json.loads(path.read_text(encoding="utf-8"))
        assert found["uid"] == path.stem
        assert len({panel["id"] for panel in found["panels"]}) == len(found["panels"])
    shown = {name for path in DASHBOARDS for expression in expressions(path) for name, _ in uses(expression)}
    alerted = {name for rule in rules() for name, _ in uses(rule["expr"])}
    served = {
        name.removesuffix("_bucket")
        for name in SERVED
        if name.startswith("lorry_") and name.endswith(("_total", "_bucket"))
    }
    assert served - {name.removesuffix("_bucket") for name in shown | alerted} == set(), (
        "counted, and nowhere to be seen"
    )
