"""Every kind of attack of the corpus is refused by the row that names it: one draw of each in the process with limits
(of the cheap ones a third, and all in the soak), all draws here."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from lorry.adapters.report import ValidationReport
from lorry.adapters.sandbox.examine import Examination, Usage
from lorry.adapters.validate import validate_directory
from lorry.layers.spec import DecoderSpec
from tests.unit.adapters.hostile import BASE_CONFIG, CORPUS
from tests.unit.adapters.hostile.kinds import write_base, write_good

SPEC = DecoderSpec.from_config(BASE_CONFIG)
MOST_BYTES = 200_000_000
MOST_S = 2.0
Examined = tuple[ValidationReport, Usage | None]
COSTLY = re.compile(
    "giant|tail|sparse|pipe|socket|endless|million|digits|thousands|nesting|explodes|multiplies|past everything"
    "|beyond all|[KM]B|,000|,001|open strings|escaped quotes|pickle|link|twice|overlap|path|NaN|negative|lies"
)
"""Names of kinds that are large, deep or long to read, or that are what an attacker tries first: each costs a process
of its own in every run."""
RUN = [
    pytest.param(name, marks=() if at % 3 == 0 or COSTLY.search(name) else pytest.mark.soak)
    for at, name in enumerate(CORPUS)
]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("hostile") / "base")


@pytest.fixture(scope="module")
def examined(
    request: pytest.FixtureRequest, base: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Examined]]:
    """Reports from children, two of which run at once, in the order in which tests will ask for them."""
    root = tmp_path_factory.mktemp("children")

    def work(name: str) -> Examined:
        child = Examination(CORPUS[name].make(root / name), BASE_CONFIG, base_dir=base)
        return child.run(), child.usage

    wanted = [
        str(item.callspec.params["name"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == "test_a_process_with_limits_refuses"
    ]
    with ThreadPoolExecutor(2) as threads:
        futures: dict[str, Future[Examined]] = {name: threads.submit(work, name) for name in wanted}
        yield lambda name: futures[name].result()


def test_the_corpus_is_large_enough() -> None:
    assert len(CORPUS) >= 60
    assert sum(kind.variations for kind in CORPUS.values()) >= 3 * len(CORPUS) - 60
    assert len([one for one in RUN if not one.marks]) >= 100


def test_what_is_spoilt_was_good(tmp_path: Path) -> None:
    assert validate_directory(write_good(tmp_path / "good"), SPEC, probe=False).ok


@pytest.mark.parametrize("name", RUN)
def test_a_process_with_limits_refuses(name: str, examined: Callable[[str], Examined]) -> None:
    report, usage = examined(name)
    assert CORPUS[name].row(report) is not None, report.failed
    assert not any(row.id.startswith("sandbox.") and row.id != "sandbox.rows" for row in report.checks)
    assert usage is not None
    assert usage.peak_bytes < MOST_BYTES
    assert usage.cpu_s < MOST_S


@pytest.mark.parametrize("name", CORPUS)
def test_each_variation_is_refused(name: str, base: Path, tmp_path: Path) -> None:
    kind = CORPUS[name]
    for seed in range(kind.variations):
        folder = kind.make(tmp_path / str(seed), seed)
        report = validate_directory(folder, SPEC, base_dir=base, probe=False)
        row = kind.row(report)
        assert row is not None, (seed, report.failed)
        assert not report.ok
        assert all(len(found.message) < 4000 for found in report.checks), "a message never repeats the file"
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder)
