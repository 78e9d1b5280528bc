"""The kept figures keep to what was promised of them: what kinds of adapter cost a step, and what validation takes.

They are of the machine that measured them last; whoever measures anew and finds more sees it here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

RESULTS = Path(__file__).resolve().parents[3] / "benchmarks" / "results"
STEP = 1.15
"""Times the step of plain LoRA, with one adapter of another kind in it."""
VALIDATION_S = 10.0
VALIDATED_MB = 95.0
KINDS = ("dora", "lora_bias", "ia3")


def kept(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("rows", ["8_rows", "32_rows"])
def test_one_adapter_of_another_kind_costs_the_step_little_and_plain_rows_nothing(rows: str) -> None:
    found = {entry["mix"]: entry for entry in kept("kinds.json")[rows]}
    for kind in KINDS:
        assert found[f"one {kind}"]["to_plain"] <= STEP, kind
    assert all(entry["plain_rows_bit_equal"] for entry in found.values())


def test_an_adapter_of_100_mb_is_validated_in_time() -> None:
    found = kept("validation.json")["kinds"]
    assert {entry["kind"] for entry in found} >= {"lora", "dora", "lora_bias"}
    for entry in found:
        assert entry["MB"] > VALIDATED_MB
        assert entry["seconds"] < VALIDATION_S, entry
