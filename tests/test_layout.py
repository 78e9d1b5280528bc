"""Source roots hold one package and no module beside it: one in platform/ would shadow the stdlib's ``platform``."""

import platform
import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE_ROOTS = {
    "platform": "lorry",
    "kernels": "lorry_kernels",
    "proto": "lorry",
    "admin": "lorry_admin",
    "migrations": "lorry_migrations",
}
PYTHON_PACKAGES = {root: name for root, name in SOURCE_ROOTS.items() if root != "proto"}


def test_the_standard_library_module_platform_is_the_one_in_use() -> None:
    assert platform.python_implementation()
    assert uuid.uuid4().version == 4
    assert ROOT not in Path(str(platform.__file__)).resolve().parents


def test_it_is_also_the_one_in_use_from_the_repository_root() -> None:
    subprocess.run([sys.executable, "-c", "import uuid, platform; platform.machine()"], cwd=ROOT, check=True)


@pytest.mark.parametrize(("root", "package"), SOURCE_ROOTS.items())
def test_a_source_root_holds_one_package_and_no_module(root: str, package: str) -> None:
    """A page of text shadows nothing."""
    found = {entry.name for entry in (ROOT / root).iterdir()} - {"__pycache__", "README.md"}
    assert found == {package}


@pytest.mark.parametrize(("root", "package"), PYTHON_PACKAGES.items())
def test_a_package_says_that_it_is_typed(root: str, package: str) -> None:
    assert (ROOT / root / package / "py.typed").is_file()


@pytest.mark.parametrize("folder", [*sorted(PYTHON_PACKAGES), "tests"])
def test_every_folder_with_modules_is_a_package(folder: str) -> None:
    top = ROOT / folder
    holding = {path.parent for path in top.rglob("*.py")} - {top if folder != "tests" else None}
    # A test folder that is no package would make pytest import by bare name, and equal file names would collide.
    assert [str(path.relative_to(ROOT)) for path in sorted(holding) if not (path / "__init__.py").is_file()] == []


def test_no_conftest_outside_tests() -> None:
    strays = [path for root in SOURCE_ROOTS for path in (ROOT / root).rglob("conftest.py")]
    assert strays == []


EXCUSED = re.compile(r"#\s*type: ignore\b(?!\[[\w, -]+\]  # \S)|except\s+BaseException\b[^:]*:(?!  # \S)")
"""An exception to a rule without its reason on its line."""


def _without_reason(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if EXCUSED.search(line)]


@pytest.mark.parametrize("folder", [*sorted(PYTHON_PACKAGES), "benchmarks", "docs", "examples", "tests"])
def test_every_exception_to_a_rule_has_its_reason_on_its_line(folder: str) -> None:
    sources = [path for path in (ROOT / folder).rglob("*.py") if not path.stem.endswith(("_pb2", "_pb2_grpc"))]
    found = {str(path.relative_to(ROOT)): _without_reason(path.read_text(encoding="utf-8")) for path in sources}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize("told", ["", "[misc]", "[misc, arg-type]", "[misc] # one space", "[misc]  #", "[misc, ]x"])
def test_an_exception_without_a_reason_is_found(told: str) -> None:
    line = f"import x  #{' type: ignore'}{told}"
    assert _without_reason(f"a\n    {line}\n") == [line]
    assert _without_reason(f"import x  #{' type: ignore'}[misc, arg-type]  # it has no types\n") == []
    assert _without_reason(f"{'except'} BaseException as error:\n") != []
    assert _without_reason(f"{'except'} BaseException as error:  # whoever leaves\n") == []
