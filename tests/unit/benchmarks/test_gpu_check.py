"""The program for a card, dry-run on a CPU: every part at toy size, and what it says when something is wrong."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from gpu import check_attention, check_fused, check_lora, versions
from gpu.bounds import of_bound, same_bits
from gpu.log import Check, Figure, Found, Log, OutOfTime
from gpu.lora_cases import LoraBatch
from gpu.machine import Interpreter
from gpu.parts import PARTS, Part, passed, run_part
from gpu.processes import TOTAL_S, run_parts
from gpu.sizes import FULL, TOY
from gpu.table import summary, table

from lorry.config import MemoryConfig

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = ROOT / "benchmarks" / "gpu_check.py"
SECONDS = 300.0


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_every_part_at_toy_size(part: Part) -> None:
    found = run_part(part, SECONDS, toy=True)
    assert passed(part, found), (found.problem, found.failed)
    assert found.checks if part.proves else found.figures
    for figure in found.figures:
        assert figure.value == figure.value, figure
        assert figure.beside, "every figure is held against something"


def at_most(tokens: int, batches: Sequence[LoraBatch]) -> tuple[LoraBatch, ...]:
    return tuple(replace(batch, tokens=min(batch.tokens, tokens)) for batch in batches)


@pytest.fixture
def products_of_any_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last bits of numpy's float32 products, which the interpreter takes, depend on a row's place in them, and a
    sum of large terms that cancel out shows it. Rounded from float64 they do not."""
    plain = np.matmul

    def matmul(a: npt.NDArray[Any], b: npt.NDArray[Any], dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
        found: npt.NDArray[Any] = plain(a.astype(np.float64), b.astype(np.float64))
        return found.astype(dtype or a.dtype)

    monkeypatch.setattr(np, "matmul", matmul)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("products_of_any_place")
@pytest.mark.parametrize("module", [check_lora, check_attention, check_fused])
def test_the_full_cases_on_small_sizes(module: ModuleType) -> None:
    """All heads, ranks and edges that a card sees; what the interpreter has no time for is smaller."""
    first, *others = FULL.lora
    small = [replace(first, k=64, widths=(48, 16, 32), batches=at_most(24, first.batches))]
    for case in others:
        k, widths = min(case.k, 576), tuple(min(n, 192) for n in case.widths)
        small.append(replace(case, k=k, widths=widths, batches=at_most(24, case.batches[::3])))
    sizes = replace(
        FULL,
        lora=tuple(small),
        decode_lengths=(1, 15, 17, 64, 513),
        prefill_queries=((1, 1), (0, 40), (17, 17), (20, 90)),
        hidden=(576, 1000),
        wide=1536,
    )
    log = silent([])
    found = log.run(lambda: module.run(Interpreter(), sizes, log))
    assert found.state == "done", found.problem
    assert found.failed == []


def program(*arguments: str, code: str = "", timeout: float = 240) -> subprocess.CompletedProcess[str]:
    """As on a machine without this project's environment."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TRITON_INTERPRET")}
    asked = [sys.executable, *(["-c", code] if code else [str(PROGRAM)]), *arguments]
    return subprocess.run(asked, capture_output=True, text=True, timeout=timeout, env=environment, cwd="/", check=False)


def test_the_program_ends_with_one_table_and_json(tmp_path: Path) -> None:
    path = tmp_path / "found" / "toy.json"
    done = program("--toy", "--only", "fused", "--json", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fused: ok   rms_norm 48 fp16" in done.stdout, "progress"
    ends = done.stdout.split("interpreter, ")[-1].splitlines()
    assert ends[0].endswith("s: every check holds")
    assert ends[2].split() == ["part", "what", "found", "times", "of", "wanted"]
    assert ends[3].split()[:2] == ["fused", "checks"]
    assert len(ends) == 4
    stored = json.loads(path.read_text())
    assert (stored["card"], stored["toy"], stored["passed"]) == ("interpreter", True, True)
    assert [part["part"] for part in stored["parts"]] == ["fused"]
    assert all(check["of_bound"] <= 1 for check in stored["parts"][0]["checks"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="about a machine without a GPU")
def test_without_a_gpu_it_says_so() -> None:
    done = program()
    assert done.returncode == 2
    assert done.stderr.startswith("GPU: torch sees none")
    assert "--toy" in done.stderr


ALLOWED = {"torch", "triton", "numpy"}
BLOCKED = """
import sys
blocked = set({blocked!r})
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"{{name}} is not on a bare machine", name=name)
sys.meta_path.insert(0, Blocker())
sys.argv = ["gpu_check.py"]
sys.path.insert(0, {folder!r})
import os
os.environ["TRITON_INTERPRET"] = "1"
import gpu_check, importlib
from gpu.parts import PARTS
for part in PARTS:
    importlib.import_module(part.module)
print(sorted({{name.partition(".")[0] for name in sys.modules}} & blocked))
"""


def closure(names: set[str]) -> set[str]:
    """Distributions that installing ``names`` brings along."""
    found: set[str] = set()
    ahead = list(names)
    while ahead:
        name = re.sub(r"[-_.]+", "-", ahead.pop()).lower()
        if name in found:
            continue
        found.add(name)
        try:
            wanted = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        ahead.extend(re.split(r"[ ;<>=!~\[(]", one, maxsplit=1)[0] for one in wanted if "extra ==" not in one)
    return found


def test_nothing_but_torch_triton_and_numpy_is_imported() -> None:
    kept = closure(ALLOWED)
    blocked = {
        module
        for module, owners in importlib.metadata.packages_distributions().items()
        if not {re.sub(r"[-_.]+", "-", owner).lower() for owner in owners} & kept and not module.startswith("_")
    } - {"benchmarks", "tests", "pip", "setuptools", "pkg_resources"}
    assert {"grpc", "sqlalchemy", "safetensors", "tokenizers", "peft", "rich", "transformers", "pytest"} <= blocked
    done = program(code=BLOCKED.format(blocked=sorted(blocked), folder=str(PROGRAM.parent)))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_parts_end_within_eight_minutes() -> None:
    together = max(part.seconds for part in PARTS if part.together)
    assert together + sum(part.seconds for part in PARTS if not part.together) <= TOTAL_S < 480
    assert len({part.name for part in PARTS}) == len(PARTS)


def test_the_full_size_is_the_issues() -> None:
    assert [row.adapters for row in FULL.engine_rows if row.tokens == row.adapters] == [1, 8, 32, 64, 256]
    assert {row.rank for row in FULL.engine_rows} == {16}
    assert (FULL.shape.name, FULL.layers) == ("Llama-3-8B", 32)
    token_bytes = 2 * FULL.shape.kv_heads * FULL.shape.head_dim * 2
    sizes = [sequences * keys * token_bytes for sequences, keys in FULL.cached]
    assert min(sizes) >= 64e6
    assert max(sizes) >= 1 << 30
    assert (min(rank for rank in FULL.ranks if rank), max(FULL.ranks)) == (1, 256)


def test_targets_of_a_whole_step_are_judged_at_their_own_load() -> None:
    """kernels.md: of 8 adapters, at 8 and at 64 sequences; of as many adapters as rows none is stated."""
    judged = {(row.adapters, row.tokens, row.context): row.least_of_base for row in FULL.engine_rows}
    assert {load: least for load, least in judged.items() if least} == {(8, 8, 2048): 0.88, (8, 64, 2048): 0.94}


def test_what_is_timed_has_the_served_pages() -> None:
    assert FULL.page_tokens == MemoryConfig().page_tokens == 64
    assert {16, 64} <= {heads.page for heads in FULL.decode if heads.dim == FULL.shape.head_dim}


def silent(found: list[str]) -> Log:
    return Log("some", 3600.0, say=found.append)


def test_a_wrong_kernel_fails_its_checks_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, -1)
        return gate * torch.sigmoid(gate) * up * 1.01

    monkeypatch.setattr(check_fused, "silu_mul", wrong)
    said: list[str] = []
    log = silent(said)
    found = log.run(lambda: check_fused.run(Interpreter(), TOY, log))
    assert found.state == "done"
    assert [check.what for check in found.failed] == ["silu_mul 48 fp16"]
    assert not passed(Part("fused", "", 1, proves=True), found)
    assert "FAIL silu_mul 48 fp16" in table([found])


def test_what_raises_is_one_check_that_failed() -> None:
    log = silent([])
    with log.trying("one"):
        raise ValueError("x: is wrong")
    with log.trying("two"):
        log.check("two", 0.5)
    assert [(check.what, check.holds) for check in log.found.checks] == [("one", False), ("two", True)]
    assert log.found.failed[0].problem == "ValueError: x: is wrong"


@pytest.mark.parametrize("error", [1.01, float("nan"), float("inf")])
def test_over_the_bound_or_nan_does_not_hold(error: float, tmp_path: Path) -> None:
    log = Log("some", 10, tmp_path / "found.json", say=lambda text: None)
    log.check("x", error)
    assert len(log.found.failed) == 1
    kept = Found.from_json(json.loads((tmp_path / "found.json").read_text()))
    assert kept.failed == log.found.failed
    assert kept.state == "running"


def test_a_part_whose_seconds_are_over_says_so() -> None:
    now = [0.0]
    log = Log("some", 5, say=lambda text: None, clock=lambda: now[0])

    def body() -> None:
        log.check("first", 0.1)
        now[0] = 6.0
        with log.trying("second"):
            raise AssertionError("not begun")

    found = log.run(body)
    assert (found.state, found.problem) == ("out of time", "ran out of its 5 s")
    assert not passed(Part("cost", "", 5), found), "no figure was taken"
    found.figures.append(Figure("added a layer", 20.0, "us", "floor 5.00 us", 4.0))
    assert passed(Part("cost", "", 5), found)
    assert not passed(Part("proof", "", 5, proves=True), found), "what was not tried is not proven"
    with pytest.raises(OutOfTime):
        log.watch()


KEEPS = """
import json, os, sys, time
found = {{"part": "x", "state": {state!r}, "seconds": 0, "problem": "", "checks": [], "figures": [], "notes": ["kept"]}}
open(sys.argv[1], "w").write(json.dumps(found))
{then}
"""


def test_a_process_that_dies_or_hangs_hides_no_other() -> None:
    codes = {
        "dies": KEEPS.format(state="running", then="os.abort()"),
        "hangs": KEEPS.format(state="running", then="time.sleep(600)"),
        "says nothing": "raise SystemExit(3)",
        "ends": KEEPS.format(state="done", then=""),
    }
    parts = [Part(name, "", 0.2, together=name in ("hangs", "ends")) for name in codes]

    def command(part: Part, seconds: float, path: Path) -> Sequence[str]:
        return [sys.executable, "-c", codes[part.name], str(path)]

    found = {one: each for one, each in zip(codes, run_parts(parts, command, workers=2, grace_s=3.0), strict=True)}
    assert {name: one.state for name, one in found.items()} == {
        "dies": "error",
        "hangs": "out of time",
        "says nothing": "error",
        "ends": "done",
    }
    assert found["hangs"].notes == found["dies"].notes == ["kept"]
    assert found["says nothing"].problem == "its process ended with status 3"
    assert found["hangs"].problem.startswith("ended by force after")


def test_parts_behind_the_end_of_the_check_are_not_begun() -> None:
    now = iter([0.0, 100.0])

    def command(part: Part, seconds: float, path: Path) -> Sequence[str]:
        raise AssertionError("begun")

    found = run_parts([Part("late", "", 5)], command, workers=1, total_s=50, clock=lambda: next(now))
    assert (found[0].state, found[0].problem) == ("out of time", "the check's 50 s are over: not begun")
    assert not passed(Part("late", "", 5), found[0])


def test_versions_are_named_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert versions.problems(toy=True) == []
    monkeypatch.setitem(versions._LEAST, "torch", (99, 0))
    monkeypatch.setitem(versions._LEAST, "not_a_module", (1, 2))
    found = versions.problems(toy=True)
    assert any(one.startswith(f"torch: is {torch.__version__}, must be 99.0 or newer; pip install") for one in found)
    assert any(one.startswith("not_a_module: cannot be imported") for one in found)


@pytest.mark.parametrize(("triton", "numpy", "works"), [("3.6.0", "2.4.1", False), ("3.6.0", "2.3.5", True)])
def test_an_interpreter_that_cannot_work_is_named(
    monkeypatch: pytest.MonkeyPatch, triton: str, numpy: str, works: bool
) -> None:
    monkeypatch.setattr("triton.__version__", triton)
    monkeypatch.setattr("numpy.__version__", numpy)
    found = versions.problems(toy=True)
    assert found == [] if works else found[0].startswith("numpy: 2.4.1 breaks the interpreter of triton 3.6.0")


def test_the_bound_counts_units_of_the_rows_largest() -> None:
    want = torch.tensor([[4.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    off = want + torch.tensor([[0.0, 4 * 2**-11], [0.0, 0.0]], dtype=torch.float64)
    assert of_bound(off.half(), want, 2.0) == pytest.approx(0.5)
    assert of_bound(torch.tensor([[float("nan")]]), torch.zeros(1, 1).double(), 1.0) != 0.0
    assert not of_bound(torch.tensor([[float("inf")]]), torch.zeros(1, 1).double(), 1.0) <= 1
    assert same_bits(torch.tensor([float("nan")]), torch.tensor([float("nan")]))
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))


def test_the_table_names_what_was_missed() -> None:
    found = Found("cost", "done", 3.2, checks=[Check("a", 0.5), Check("b", 1e30, "bits differ")])
    found.figures = [Figure("added a layer", 20.0, "us", "floor 5.00 us", 4.0, "<= 12 us", False)]
    lines = table([found, Found("late", "out of time", problem="ran out of its 5 s")]).splitlines()
    assert lines[1].split() == ["cost", "checks", "in", "3", "s", "1", "FAIL,", "1", "hold", "0.50", "bound", "(worst)"]
    assert lines[2].split(None, 1) == ["FAIL", "b: bits differ"]
    assert lines[3].split(None, 1)[1].split("  ")[0] == "added a layer"
    assert lines[3].endswith("floor 5.00 us  <= 12 us MISSED")
    assert "OUT OF TIME" in lines[4]
    assert "ran out of its 5 s" in lines[5]


def test_the_summary_counts_targets_and_names_what_did_not_end() -> None:
    figures = [Figure("a", 1.0, "us", "b", 1.0, "<= 2 us", True), Figure("a", 3.0, "us", "b", 1.0, "<= 2 us", False)]
    cost = Found("cost", "done", figures=[*figures, Figure("no target", 1.0, "ms", "b", 1.0)])
    assert summary([Found("proof", "done"), cost], True) == "every check holds, 1 of 2 targets met"
    late = [Found("proof", "done"), Found("late", "out of time")]
    assert summary(late, False) == "NOT EVERY CHECK HOLDS, not to its end: late"
