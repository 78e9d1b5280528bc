"""Each bad adapter is refused, and for the fault that was made: the good one it comes from passes."""

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

from lorry.adapters.validate import validate_directory
from tests.unit.examples.smollm2 import SMOLLM2

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
SCRIPT = runpy.run_path(str(EXAMPLES / "make_bad_adapters.py"))
make_bad_adapter: Callable[..., Path] = SCRIPT["make_bad_adapter"]

NAMED = {
    "half-dora": "use_dora",
    "wrong-shape": "lora_B",
    "rank-zero": "r ",
    "nan": "NaN",
    "no-match": "attention",
    "half-matches": "attention",
    "unknown-type": "VERA",
    "changed-base": "pissa",
    "truncated": "adapter_model.safetensors",
    "pickle": "adapter_model.bin",
}


def test_every_kind_is_known_here() -> None:
    assert set(SCRIPT["KINDS"]) == set(NAMED)


def test_the_source_is_good() -> None:
    assert validate_directory(SCRIPT["DEFAULT_SOURCE"], SMOLLM2).ok


@pytest.mark.parametrize("kind", NAMED)
def test_is_refused_by_the_name_of_its_fault(kind: str, tmp_path: Path) -> None:
    report = validate_directory(make_bad_adapter(kind, tmp_path / kind), SMOLLM2)
    assert not report.ok
    text = "; ".join(f"{check.id}: {check.message}" for check in report.failed)
    assert NAMED[kind] in text, text
