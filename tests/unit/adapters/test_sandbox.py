"""The process that validates: its limits hold, its end is a row, and nothing of it is left."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lorry.adapters.report import Check
from lorry.adapters.sandbox import examine as sandbox
from lorry.adapters.sandbox import limits as sandbox_limits
from lorry.adapters.sandbox import process as sandbox_process
from lorry.adapters.sandbox.child import plain
from lorry.adapters.sandbox.examine import Cancelled, Examination, examine
from lorry.adapters.sandbox.limits import Allowance, Growth, SandboxLimits, Sizes, StageLimits
from lorry.adapters.sandbox.process import Child, TooMuchSaid
from lorry.adapters.validate import validate_directory
from lorry.errors import Unavailable, UnsupportedBase
from tests.unit.adapters import craft
from tests.unit.adapters.hostile.kinds import MANY_FILES, TALKATIVE, write_long

LIMITS = SandboxLimits()
ACCEPTED = b'{"done":{"accepted":{"rank":1,"vocabulary":null,"text":null},"peak_bytes":1,"cpu_s":0}}'


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return craft.write_adapter(tmp_path / "good")


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    """Is refused before torch would be imported."""
    return craft.write_adapter(tmp_path / "bad", b"[]")


@pytest.fixture
def long(tmp_path: Path) -> Path:
    return write_long(tmp_path / "long")


def child_of(work: Examination) -> int:
    """The child's process id, while it runs."""
    process = work._child._process
    assert process is not None
    return process.pid


def is_gone(process: int) -> bool:
    """Neither alive nor a zombie."""
    return not Path(f"/proc/{process}").exists()


def structure(**changes: Any) -> SandboxLimits:
    return replace(LIMITS, structure=replace(LIMITS.structure, **changes))


def answered(monkeypatch: pytest.MonkeyPatch, lines: list[bytes], status: int = 0) -> None:
    """What is examined from here on has a child that said this and ended so."""

    class Said(Child):
        def __enter__(self) -> Said:
            self.status = status
            return self

        def ask(self, request: bytes, deadline: Callable[[], float]) -> Iterator[bytes]:
            yield from lines

    monkeypatch.setattr(sandbox, "Child", Said)


def at_first_row(path: Path, act: Callable[[int], object], limits: SandboxLimits = TALKATIVE) -> list[Check]:
    """The sandbox's own failed rows; ``act`` is called with the child's process id when it has said its first row."""
    seen: list[Check] = []

    def on_check(check: Check) -> None:
        if not seen:
            act(child_of(work))
        seen.append(check)

    work = Examination(path, craft.BASE_CONFIG, MANY_FILES, on_check=on_check, sandbox=limits)
    report = work.run()
    assert tuple(seen) == report.checks
    assert not report.ok
    assert is_gone(child_of(work))
    return [check for check in report.failed if check.id.startswith("sandbox.")]


def test_says_what_validation_in_this_process_says(good: Path) -> None:
    told: list[Check] = []
    report = examine(good, craft.BASE_CONFIG, base_name="some/base", on_check=told.append)
    here = validate_directory(good, craft.SPEC, base_name="some/base")
    assert [check.to_dict() for check in report.checks] == [check.to_dict() for check in here.checks]
    assert report.accepted == here.accepted is not None
    assert tuple(told) == report.checks
    assert report.check("probe") is not None, "the last stage ran"


def test_refuses_what_validation_in_this_process_refuses(tmp_path: Path) -> None:
    folder = craft.write_adapter(tmp_path / "a", craft.CONFIG | {"r": True, "evil\n\ud800": 1})
    report = examine(folder, craft.BASE_CONFIG)
    here = validate_directory(folder, craft.SPEC)
    assert not report.ok
    assert [row.id for row in report.failed] == [plain(row)["id"] for row in here.failed]
    json.dumps(report.to_dict(), ensure_ascii=False).encode("utf-8")


def test_processor_time_is_limited(tmp_path: Path) -> None:
    """A header of 1 MB in 85,000 parts takes several times as long."""
    header = b"{" + b",".join(b'"%x":[[]]' % index for index in range(85_000)) + b"}"
    folder = craft.write_adapter(tmp_path / "a", None, craft.pack(header, b""))
    report = examine(folder, craft.BASE_CONFIG, sandbox=structure(cpu_s=0.05))
    [row] = report.failed
    assert row.id == "sandbox.time"
    assert "structure took over 0.05 s of processor time" in row.message
    assert row.limit == 0.05


def test_processor_time_is_limited_in_each_stage(good: Path) -> None:
    """Imports torch, which takes longer than that."""
    report = examine(good, craft.BASE_CONFIG, sandbox=replace(LIMITS, probe=replace(LIMITS.probe, cpu_s=0.1)))
    [row] = report.failed
    assert row.id == "sandbox.time"
    assert "its probe took over 0.101 s" in row.message
    assert report.check("weights.values") is not None
    assert report.accepted is None


def test_memory_is_limited(tmp_path: Path) -> None:
    """A config that is read in one piece of 250 KB, which is good otherwise."""
    folder = craft.write_adapter(tmp_path / "a", craft.CONFIG | {"revision": "x" * 250_000})
    report = examine(folder, craft.BASE_CONFIG, sandbox=structure(data_bytes=1 << 20))
    [row] = report.failed
    assert row.id == "sandbox.memory"
    assert "its structure wanted over 1048576 bytes" in row.message


def test_the_wall_clock_is_limited(long: Path) -> None:
    limits = replace(structure(cpu_s=0.1, wall_s=0.5), rows=TALKATIVE.rows)
    began = time.monotonic()
    [row] = at_first_row(long, lambda child: os.kill(child, signal.SIGSTOP), limits)
    assert row.id == "sandbox.time"
    assert "took over 1 s" in row.message
    assert time.monotonic() - began < 20


def test_a_child_that_the_system_ends_ran_out_of_memory(long: Path) -> None:
    """Nobody else kills it but we, and then the clock or the caller is the reason."""
    [row] = at_first_row(long, lambda child: os.kill(child, signal.SIGKILL))
    assert row.id == "sandbox.memory"
    assert "its structure was ended by the system" in row.message


def test_no_stage_may_have_more_than_the_machine_has_to_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    giant = Sizes(weights=16 << 30, text=0, base=0)
    monkeypatch.setattr(sandbox_limits, "available_bytes", lambda: 4 << 30)
    assert LIMITS.allow(giant)["probe"].data_bytes == 3 << 30
    assert LIMITS.allow(Sizes(0, 0))["structure"].data_bytes == LIMITS.structure.data_bytes
    monkeypatch.setattr(sandbox_limits, "available_bytes", lambda: 0)
    assert LIMITS.allow(giant)["structure"].data_bytes == LIMITS.structure.data_bytes, "enough to say no"


@pytest.mark.parametrize(
    ("meminfo", "bound", "used", "wanted"),
    [
        ("MemTotal: 9 kB\nMemAvailable:   2048 kB\n", "max", "5", 2048 << 10),
        ("MemAvailable: 2048 kB\n", str(1 << 20), str(1 << 19), 1 << 19),
        ("MemAvailable: 1 kB\n", str(1 << 20), "0", 1 << 10),
        ("MemAvailable: 2048 kB\n", "100", "200", 0),
        ("what a system may say\n", "", "", 1 << 62),
    ],
)
def test_memory_that_there_is_to_give(tmp_path: Path, meminfo: str, bound: str, used: str, wanted: int) -> None:
    (tmp_path / "meminfo").write_text(meminfo)
    (tmp_path / "memory.max").write_text(bound)
    (tmp_path / "memory.current").write_text(used)
    assert sandbox_limits.available_bytes(tmp_path / "meminfo", tmp_path) == wanted
    assert sandbox_limits.available_bytes(tmp_path / "none", tmp_path / "none") == 1 << 62


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGBUS, signal.SIGTERM])
def test_a_child_that_dies_is_a_row(long: Path, number: signal.Signals) -> None:
    [row] = at_first_row(long, lambda child: os.kill(child, number))
    assert row.id == "sandbox.crash"
    assert f"its structure ended with signal {int(number)}" in row.message


def test_a_child_that_aborts_for_want_of_memory_is_told_apart(long: Path) -> None:
    def abort(child: int) -> None:
        work.trace = b"memory allocation of 17179869184 bytes failed\n"  # as Rust says it before it aborts
        os.kill(child, signal.SIGABRT)

    seen: list[Check] = []

    def on_check(check: Check) -> None:
        if not seen:
            abort(child_of(examination))
        seen.append(check)

    examination = Examination(long, craft.BASE_CONFIG, MANY_FILES, on_check=on_check, sandbox=TALKATIVE)
    work = examination._child
    assert [row.id for row in examination.run().failed if "sandbox" in row.id] == ["sandbox.memory"]


def test_rows_are_limited(long: Path) -> None:
    report = examine(long, craft.BASE_CONFIG, MANY_FILES)
    assert len(report.checks) == LIMITS.rows + 1
    last = report.checks[-1]
    assert (last.id, last.outcome, last.limit) == ("sandbox.rows", "fail", LIMITS.rows)


def test_the_child_has_three_pipes_a_clean_environment_and_hard_limits(
    long: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    found: dict[str, Any] = {}

    def look(child: int) -> None:
        proc = Path(f"/proc/{child}")
        found["environment"] = {
            entry.partition(b"=")[0] for entry in (proc / "environ").read_bytes().split(b"\0") if entry
        }
        found["open"] = {os.readlink(entry).partition(":")[0] for entry in (proc / "fd").iterdir()}
        found["limits"] = {line[:26].strip(): line[26:].split() for line in (proc / "limits").read_text().splitlines()}
        found["command"] = (proc / "cmdline").read_bytes().split(b"\0")
        found["session"] = os.getsid(child)
        found["child"] = child
        os.kill(child, signal.SIGKILL)

    secret = os.open("/etc/hostname", os.O_RDONLY)
    os.set_inheritable(secret, True)
    try:
        at_first_row(long, look)
    finally:
        os.close(secret)
    assert found["environment"] <= {*(name.encode() for name in sandbox_process._ENVIRONMENT), b"LD_LIBRARY_PATH"}
    assert {str(name).split("/")[0] for name in found["open"] if not str(name).startswith("/")} == {"pipe"}
    assert not any(str(name).startswith("/etc") for name in found["open"])
    assert b"-I" in found["command"], "no path of the caller's, no user's packages"
    limits = found["limits"]
    assert limits["Max core file size"][:2] == ["0", "0"]
    assert limits["Max file size"][:2] == ["0", "0"]
    assert limits["Max data size"][0] == str(LIMITS.structure.data_bytes)
    assert int(limits["Max cpu time"][0]) <= 4
    assert found["session"] == found["child"] != os.getsid(0)


def test_nothing_is_left_of_many(long: Path) -> None:
    def opened() -> int:
        return len(os.listdir("/proc/self/fd"))

    examine(long, craft.BASE_CONFIG, MANY_FILES)
    before = opened()
    for limits in (LIMITS, structure(cpu_s=0.01), structure(data_bytes=1)):
        examine(long, craft.BASE_CONFIG, MANY_FILES, sandbox=limits)
    assert opened() == before


def test_a_listener_that_raises_ends_the_child(long: Path) -> None:
    def on_check(check: Check) -> None:
        raise LookupError(check.id)

    work = Examination(long, craft.BASE_CONFIG, MANY_FILES, on_check=on_check, sandbox=TALKATIVE)
    with pytest.raises(LookupError):
        work.run()
    assert is_gone(child_of(work))


def test_cancelling_from_another_thread_ends_it_at_once(long: Path) -> None:
    def cancel(child: int) -> None:
        threading.Thread(target=work.cancel).start()
        # What is to be cancelled waits for this thread to read on, so it cannot have ended by itself.
        while Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
            os.sched_yield()

    seen: list[Check] = []

    def on_check(check: Check) -> None:
        if not seen:
            cancel(child_of(work))
        seen.append(check)

    work = Examination(long, craft.BASE_CONFIG, MANY_FILES, on_check=on_check, sandbox=TALKATIVE)
    with pytest.raises(Cancelled):
        work.run()
    assert is_gone(child_of(work))


def test_cancelled_before_it_began_starts_nothing(good: Path) -> None:
    work = Examination(good, craft.BASE_CONFIG)
    work.cancel()
    with pytest.raises(Cancelled):
        work.run()
    assert work._child._process is None


@pytest.mark.parametrize("program", ["/absent/python", "/bin/false"])
def test_no_child_says_nothing_of_the_adapter(bad: Path, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", program)
    with pytest.raises(Unavailable, match="cannot be validated now"):
        examine(bad, craft.BASE_CONFIG)


def test_a_bad_base_is_no_fault_of_the_adapter(good: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedBase, match="model_type"):
        examine(good, craft.BASE_CONFIG | {"model_type": "evil"})
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnsupportedBase, match="safetensors"):
        examine(good, craft.BASE_CONFIG, base_dir=tmp_path / "empty")


def test_an_answer_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_process, "_ANSWER_BYTES", 1000)
    with Child("calendar") as child, pytest.raises(TooMuchSaid):
        list(child.ask(b"", lambda: time.monotonic() + 30))


def test_an_answer_comes_in_lines_and_a_trace_beside_it() -> None:
    with Child("this") as child:
        lines = list(child.ask(b"x" * (1 << 20), lambda: time.monotonic() + 30))
    assert (lines[0], child.status) == (b"The Zen of Python, by Tim Peters", 0)
    with Child("lorry.no_such_module") as child:
        assert list(child.ask(b"", lambda: time.monotonic() + 30)) == []
    assert child.status == 1
    assert b"no_such_module" in child.trace


def test_a_deadline_that_has_passed_raises_and_leaves_nothing() -> None:
    with pytest.raises(TimeoutError), Child("code") as child:  # it waits for input
        list(child.ask(b"x" * (1 << 22), lambda: 0.0))
    assert child.status == -signal.SIGKILL


@pytest.mark.parametrize(
    "answer", [b"x", b"{}", b"[]", b'{"row":{"id":"a"}}', b'{"stage":"evil"}', b'{"done":{}}', b"\xff"]
)
def test_an_answer_that_is_none_is_a_refusal(bad: Path, answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch, [b'{"stage":"structure"}', answer])
    report = examine(bad, craft.BASE_CONFIG)
    assert [row.id for row in report.failed] == ["sandbox.crash"]


@pytest.mark.parametrize(
    "lines",
    [
        [b'{"stage":"structure"}', b'{"done":{"accepted":null,"peak_bytes":1,"cpu_s":0}}'],
        [b'{"stage":"structure"}'],
        [b'{"stage":"structure"}', b'{"row":{"id":"a","outcome":"fail","message":"b"}}',
         ACCEPTED],
    ],
)  # fmt: skip
def test_no_row_no_end_or_a_failed_row_never_accept(
    bad: Path, lines: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    answered(monkeypatch, lines)
    report = examine(bad, craft.BASE_CONFIG)
    assert not report.ok
    assert report.failed


def test_a_child_that_ends_badly_after_its_last_line_is_refused(bad: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [b'{"stage":"structure"}', ACCEPTED]
    answered(monkeypatch, lines, status=-signal.SIGSEGV)
    assert [row.id for row in examine(bad, craft.BASE_CONFIG).failed] == ["sandbox.crash"]


def test_rows_hold_text_that_every_store_takes() -> None:
    row = plain(Check.fail("files.\ud800\x00" + "x" * 500, "a\x00\ud800\n\u202e" + "y" * 5000, "\udfff", "\x1b"))
    assert row["id"].startswith("files.\\ud800\\x00xx")
    assert row["message"].startswith("a\\x00\\ud800\\n\\u202eyy")
    assert (len(row["id"]), len(row["message"])) == (128, 2000)
    assert (row["value"], row["limit"]) == ("\\udfff", "\\x1b")


def test_allowances_grow_with_the_folder_and_not_past_the_most(tmp_path: Path) -> None:
    stage = StageLimits(1.0, 100, weights=Growth(0.5, 2), text=Growth(0.25, 3), base=Growth(1, 1), wall_s=7)
    assert stage.allow(Sizes(0, 0)) == Allowance(1.0, 100, 12.0)
    mib = 1 << 20
    assert stage.allow(Sizes(2 * mib, 4 * mib, mib)) == Allowance(4.0, 100 + 17 * mib, 27.0)
    for name, size in (("a.safetensors", 1 << 40), ("b.safetensors", 10), ("adapter_config.json", 30), ("x.bin", 9)):
        with (tmp_path / name).open("wb") as handle:
            handle.truncate(size)
    (tmp_path / "link.json").symlink_to("/etc/passwd")
    assert Sizes.of(tmp_path, None, 1 << 30) == Sizes(1 << 30, 30)
    assert Sizes.of(tmp_path, tmp_path, 1 << 50) == Sizes((1 << 40) + 10, 60, (1 << 40) + 10)
    assert Sizes.of(tmp_path / "absent", None, 1) == Sizes(0, 0)
    assert LIMITS.allow(Sizes(1 << 40, 1 << 40))["structure"] == LIMITS.allow(Sizes(0, 0))["structure"]
