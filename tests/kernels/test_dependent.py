"""Kernels that may be placed while the one before still runs: where, and that they wait before they touch memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lorry_kernels.ops.launch import Launch
from lorry_kernels.ops.lora_tiles import expand_tiles, shrink_tiles

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("arch", "dependent"),
    [("sm_80", False), ("sm_89", False), ("sm_90", True), ("sm_100", True), ("gfx942", False), ("interpreter", False)],
)
def test_from_hopper_on(arch: str, dependent: bool) -> None:
    assert Launch().on(arch).dependent is dependent
    assert ("launch_pdl" in Launch().on(arch).options) is dependent


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "gfx942"])
def test_both_of_a_site_are(arch: str) -> None:
    tiles = (shrink_tiles("decode", arch, 4096, 3, 1, 2).launch, expand_tiles("decode", arch, 1024, 1).launch)
    assert {launch.dependent for launch in tiles} == {arch == "sm_90"}


@pytest.fixture(scope="module")
def code() -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.dependent_code", "sm_80", "sm_90"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("op", ["shrink", "expand"])
def test_it_waits_before_it_touches_memory(code: dict[str, Any], op: str) -> None:
    hopper = code[f"{op} sm_90"]
    assert hopper["options"]["launch_pdl"] == 1
    assert hopper["waits"] == 1
    assert hopper["unwaited"] == 0, "what the kernel before writes might not be there yet"
    assert not hopper["early"]


@pytest.mark.parametrize("op", ["shrink", "expand"])
def test_a_card_that_cannot_has_none_of_it(code: dict[str, Any], op: str) -> None:
    ampere = code[f"{op} sm_80"]
    assert "launch_pdl" not in ampere["options"]
    assert ampere["waits"] == ampere["lets"] == 0
    assert ampere["unwaited"] > 0, "or nothing would be seen"


def test_only_the_shrink_lets_the_next_one_in(code: dict[str, Any]) -> None:
    assert (code["shrink sm_90"]["lets"], code["expand sm_90"]["lets"]) == (1, 0)
