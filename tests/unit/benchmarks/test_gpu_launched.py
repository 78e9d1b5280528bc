"""What is heard of a step's launches, and how it is judged: who hears nothing would find nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from gpu import base_only as judged
from gpu.log import Log

from lorry.engine.gpu.forms import Form
from lorry.engine.gpu.runner import PagedRunner

ROOT = Path(__file__).resolve().parents[3]
COMPILED = """
import sys
sys.path[:0] = {path!r}
import triton
from triton.runtime.jit import JITFunction
from gpu.launched import launched

@triton.jit
def one(x):
    pass

@triton.jit
def two(x):
    pass

ran = []

def run(kernel, *args, **kwargs):
    ran.append((kernel.__name__, args, kwargs))

def call():
    one[(1,)](5)
    two[(2,)](6)

JITFunction.run = run
print(launched(call), ran, JITFunction.run is run)
"""


def test_compiled_kernels_are_heard_and_launched(tmp_path: Path) -> None:
    """It takes no GPU to see that a launch passes where it is heard, and goes on whole."""
    program = tmp_path / "compiled.py"
    program.write_text(COMPILED.format(path=[str(ROOT / "benchmarks"), str(ROOT / "kernels")]), encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, env=environment, timeout=60, check=False
    )
    grids = [("one", (5,), {"grid": (1,), "warmup": False}), ("two", (6,), {"grid": (2,), "warmup": False})]
    assert done.stdout.strip() == f"['one', 'two'] {grids} True", done.stderr


LORA = ["_place_rows", "_list_tiles", "_rms_norm", "_shrink", "_expand"]


@pytest.mark.parametrize(
    ("base", "lora", "failed", "met"),
    [
        (["_rms_norm"], LORA, [], True),
        (["_rms_norm", "_shrink"], LORA, ["a base-only step launches none of them"], False),
        (["_list_tiles"], LORA, ["a base-only step launches none of them"], False),
        ([], LORA[:-1], ["a step with LoRA launches route, shrink and expand"], False),
        ([], [], ["a step with LoRA launches route, shrink and expand"], False),
    ],
)
def test_a_base_only_step_launches_nothing_for_lora(
    monkeypatch: pytest.MonkeyPatch, base: list[str], lora: list[str], failed: list[str], met: bool
) -> None:
    heard = {Form.BASE: base, Form.LORA: lora}
    captured = {(8, form): SimpleNamespace(inputs=form) for form in heard}
    runner = SimpleNamespace(_captured=captured, _decode=lambda inputs, form: heard[form])
    monkeypatch.setattr(judged, "launched", lambda call: call())
    log = Log("some", 10, say=lambda text: None)
    judged.base_only(cast(PagedRunner, cast(Any, runner)), 8, log)
    assert [check.what for check in log.found.failed] == failed
    (figure,) = log.found.figures
    assert (figure.value, figure.wanted, figure.met) == (sum(name in LORA[:2] + LORA[3:] for name in base), "0", met)
