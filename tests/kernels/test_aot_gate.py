"""The ahead-of-time gate: what it reads, what it refuses, and that it passes over what is shipped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lorry_kernels import ops
from lorry_kernels.aot.build import Expect
from lorry_kernels.aot.gate import SHARED_LIMIT, judge
from lorry_kernels.aot.resources import UNKNOWN, Resources, Widths

ROOT = Path(__file__).resolve().parents[2]
CLEAN = Resources(64, 0, 0, 0, 1024, 8, {"weights": Widths({16: 4})})
WANTED = Expect(tensor_cores=True, wide_loads_of=("weights",))


def gate(tmp_path: Path, *arguments: str, path: Sequence[Path] = ()) -> tuple[int, dict[str, Any], str]:
    """Exit status, JSON and printed text of a run in a process of its own, told to interpret."""
    report = tmp_path / "report.json"
    done = subprocess.run(
        [sys.executable, "-m", "lorry_kernels.aot", "--json", str(report), *arguments],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "kernels", *path))),
            "TRITON_INTERPRET": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert report.is_file(), done.stderr
    return done.returncode, json.loads(report.read_text()), done.stdout


def rules(report: dict[str, Any], op: str) -> set[str]:
    return {breach["rule"] for row in report["rows"] if row["op"] == op for breach in row["breaches"]}


# What is judged.


def test_clean_code_passes() -> None:
    assert judge(CLEAN, WANTED, "sm_80") == ()
    assert judge(CLEAN, Expect(), "gfx942") == ()


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"stack_bytes": 8}, "stack"),
        ({"spills": 1}, "spills"),
        ({"local_accesses": 1}, "local memory"),
        ({"shared_bytes": 163 * 1024 + 1}, "shared memory"),
        ({"tensor_ops": 0}, "tensor cores"),
        ({"unwaited": 1}, "wait"),
        ({"widths": {"weights": Widths({2: 1, 16: 4})}}, "narrow loads of weights"),
        ({"widths": {"weights": Widths({1: 1, 16: 4})}}, "narrow loads of weights"),
        ({"widths": {"weights": Widths({8: 4})}}, "wide loads of weights"),
        ({"widths": {"weights": Widths({}, {4: 4})}}, "wide stores of weights"),
        ({"widths": {}}, "wide loads of weights"),
        ({"widths": {"weights": Widths({16: 4}), UNKNOWN: Widths({2: 1})}}, "narrow loads of unknown origin"),
    ],
)
def test_each_rule_names_figure_limit_and_remedy(change: dict[str, Any], rule: str) -> None:
    values = {name: getattr(CLEAN, name) for name in CLEAN.__dataclass_fields__}
    (breach,) = judge(Resources(**{**values, **change}), WANTED, "sm_80")
    assert breach.rule == rule
    assert all((breach.figure, breach.limit, breach.remedy))


@pytest.mark.parametrize("arch", sorted(SHARED_LIMIT))
def test_shared_memory_is_limited_by_card(arch: str) -> None:
    values = {name: getattr(CLEAN, name) for name in CLEAN.__dataclass_fields__}
    limit = SHARED_LIMIT[arch]
    assert judge(Resources(**{**values, "shared_bytes": limit}), WANTED, arch) == ()
    (breach,) = judge(Resources(**{**values, "shared_bytes": limit + 1}), WANTED, arch)
    assert str(limit) in breach.limit


def test_a_stored_reading_is_the_reading() -> None:
    stored = json.loads(json.dumps(CLEAN.to_json()))
    assert Resources.from_json(stored) == CLEAN


# The gate as it is run.


def test_good_code_passes_on_every_card_and_readings_are_kept(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    run = ("--module", "tests.kernels.aot_samples", "--cache", str(kept), "--jobs", "1")
    status, report, text = gate(tmp_path, *run)
    assert (status, report["breaches"]) == (0, 0)
    assert [row["arch"] for row in report["rows"]] == ["sm_80", "sm_90", "gfx942"]
    for row in report["rows"]:
        assert row["resources"]["tensor_ops"] > 0
        assert set(row["resources"]["widths"]["weights"]["loads"]) == {"16"}
        assert "SmolLM2-135M" in row["shapes"]
        assert "Llama-3-70B/8" in row["shapes"]
    assert "3 kernels compiled, 0 in breach" in text
    (reading, *others) = sorted(kept.iterdir())
    assert len(others) == 2
    forged = json.loads(reading.read_text()) | {"stack_bytes": 8}
    reading.write_text(json.dumps(forged))
    status, report, quiet = gate(tmp_path, *run, "--quiet")
    assert (status, rules(report, "product")) == (1, {"stack"})
    breach, count = quiet.splitlines()
    assert "stack: 8 bytes" in breach
    assert count == "3 kernels compiled, 1 in breach, 0 without a build"
    status, report, _ = gate(tmp_path, *run, "--no-cache", "--arch", "gfx942")
    assert status == 0


NVIDIA_FAULTS = {
    "hint": "narrow loads of weights",
    "divisible": "narrow loads of weights",
    "one divisible": "narrow loads of weights",
    "spills": "stack",
    "shared": "shared memory",
    "tensor cores": "tensor cores",
    "absent": "wide loads of k",
    "wait": "wait",
    "type": "compiler",
    "unspecialized": "build",
    "missing": "build",
}


def test_every_fault_is_named_on_nvidia(tmp_path: Path) -> None:
    run = ("--module", "tests.kernels.aot_faults", "--shape", "Llama-3-8B", "--arch", "sm_90", "--no-cache")
    status, report, text = gate(tmp_path, *run, "--jobs", "1")
    assert status == 1
    assert {row["op"] for row in report["rows"]} == set(NVIDIA_FAULTS)
    for op, rule in NVIDIA_FAULTS.items():
        assert rule in rules(report, op)
        assert any(line.startswith(op) and "[Llama-3-8B] on sm_90: " in line for line in text.splitlines())
    assert "local memory" in rules(report, "spills")
    assert report["uncovered"] == ["tests.kernels.aot_faults.forgotten"]
    assert "aot_faults.forgotten: a kernel that is in no build" in text


def test_faults_are_named_on_amd(tmp_path: Path) -> None:
    run = ("--module", "tests.kernels.aot_faults", "--shape", "Llama-3-8B", "--arch", "gfx942", "--no-cache")
    status, report, _ = gate(tmp_path, *run, "--jobs", "1", "--op", "hint", "shared", "spills", "tensor cores")
    assert status == 1
    assert rules(report, "hint") == {"narrow loads of weights"}
    assert rules(report, "shared") == {"shared memory"}
    assert rules(report, "spills") == {"stack", "spills", "local memory"}
    assert rules(report, "tensor cores") == {"tensor cores"}


# What is shipped.


def test_a_part_of_what_is_shipped_passes(tmp_path: Path) -> None:
    status, report, text = gate(tmp_path, "--sample", "2", "--shape", "Llama-3-8B")
    assert status == 0, text
    assert {row["arch"] for row in report["rows"]} == set(SHARED_LIMIT)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_all_of_what_is_shipped_passes(tmp_path: Path) -> None:
    status, _, text = gate(tmp_path)
    assert status == 0, text


def seeded(tmp_path: Path, module: str, old: str, new: str, tail: str = "") -> str:
    """A copy of an ops module with one thing taken away; its name."""
    text = (Path(ops.__path__[0]) / f"{module}.py").read_text()
    assert old in text
    (tmp_path / f"seeded_{module}.py").write_text(text.replace(old, new) + tail)
    return f"seeded_{module}"


UNALIGNED = """

_whole = builds


def builds(shape, arch):
    from dataclasses import replace

    for build in _whole(shape, arch):
        yield replace(build, divisible=frozenset())
"""


def run_seeded(tmp_path: Path, module: str) -> set[str]:
    run = ("--module", module, "--shape", "Llama-3-8B", "--arch", "sm_90", "--sample", "1", "--no-cache", "--jobs", "1")
    status, report, _ = gate(tmp_path, *run, path=[tmp_path])
    assert status == 1
    return {breach["rule"] for row in report["rows"] for breach in row["breaches"]}


def test_an_alignment_hint_taken_away_fails_the_gate(tmp_path: Path) -> None:
    """The offset of a chunk is read from a table: without the hint nothing says that it is aligned."""
    tail = "\n\n@triton.jit\ndef _no_hint(x, n):\n    return x\n"
    module = seeded(tmp_path, "shrink", "tl.multiple_of(", "_no_hint(", tail)
    assert "narrow loads of arena" in run_seeded(tmp_path, module)


@pytest.mark.parametrize("module", ["expand", pytest.param("paged_prefill", marks=pytest.mark.soak)])
def test_arguments_that_are_not_divisible_fail_the_gate(tmp_path: Path, module: str) -> None:
    found = run_seeded(tmp_path, seeded(tmp_path, module, "", "", UNALIGNED))
    assert any(rule.startswith("narrow loads of") for rule in found)
