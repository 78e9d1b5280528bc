"""Both types are run on equal rows, in turn."""

from pathlib import Path

from bench_weight_type import measure
from engine_runs import write_tiny


def test_a_step_is_timed_in_both_types(tmp_path: Path) -> None:
    found = measure(write_tiny(tmp_path / "base"), rows=3, rounds=2)
    assert found["rows"] == 3
    assert min(found["bfloat16_ms"], found["float32_ms"], found["bfloat16_to_float32"]) > 0
