"""What the documentation states of code is made from that code, and is as it would be made now."""

import re
from pathlib import Path

import generate
import pytest
from making.api import read_protos
from making.cli import commands

from lorry.cli.app import build_parser

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", ["README.md", "docs/adapters.md", "docs/api.md", "docs/cli.md", "docs/metrics.md"])
def test_a_page_is_what_the_generator_makes(name: str) -> None:
    made = generate.pages()
    assert (ROOT / name).read_text(encoding="utf-8") == made[ROOT / name], "run `make docs`"


def test_every_marked_part_is_there() -> None:
    marked = {
        name: re.findall(r"<!-- generated: ([a-z-]+) -->", (ROOT / name).read_text(encoding="utf-8"))
        for name in ("README.md", "docs/adapters.md")
    }
    assert marked == {"README.md": ["make-help"], "docs/adapters.md": ["formats"]}


def test_every_field_and_message_has_its_row() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for proto in read_protos():
        for message in proto.file.message_type:
            assert f"### {message.name}\n" in page
            section = page.split(f"### {message.name}\n", 1)[1].split("\n### ", 1)[0]
            assert [row for row in message.field if f"| {row.number} | `{row.name}` |" not in section] == []
        for service in proto.file.service:
            assert [method for method in service.method if f"| `{method.name}` |" not in page] == []


def test_every_command_and_flag_is_listed() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for name, _, parser in commands(build_parser()):
        for action, _, own in [*commands(parser)] or [("", "", parser)]:
            heading = f"lorry {name} {action}".rstrip()
            assert f"# {heading}\n" in page
            section = page.split(f"# {heading}\n", 1)[1].split("\n#", 1)[0] + page.split("\n## ", 1)[0]
            flags = [flag for argument in own._actions for flag in argument.option_strings if flag[:2] == "--"]
            assert [flag for flag in flags if flag != "--help" and f"`{flag}" not in section] == []


def test_links_lead_somewhere() -> None:
    kernels = ROOT / "kernels" / "README.md"
    for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", kernels, *ROOT.glob("docs/*.md")]:
        text = page.read_text(encoding="utf-8")
        headings = {_anchor(heading) for heading in re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)}
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            path, _, anchor = target.partition("#")
            if "://" in target:
                continue
            if path:
                assert (page.parent / path).exists(), f"{page.name}: {target}"
            else:
                assert anchor in headings, f"{page.name}: {target}"


def _anchor(heading: str) -> str:
    """As GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_the_architecture_page_names_what_exists() -> None:
    """Every `lorry.x.y` and `lorry_x.y` in backticks can be found: a module, or a name in one."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    names = set(re.findall(r"`((?:lorry|lorry_kernels|lorry_admin|lorry_migrations)(?:\.\w+)+)`", page))
    assert len(names) > 20
    assert sorted(name for name in names if not _exists(name)) == []


def _exists(name: str) -> bool:
    parts = name.split(".")
    root = {"lorry": "platform", "lorry_kernels": "kernels", "lorry_admin": "admin", "lorry_migrations": "migrations"}
    for count in range(len(parts), 0, -1):
        place = ROOT.joinpath(root[parts[0]], *parts[:count])
        source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        if source.is_file():
            rest = parts[count:]
            text = source.read_text(encoding="utf-8")
            return not rest or (len(rest) <= 2 and all(re.search(rf"\b{re.escape(part)}\b", text) for part in rest))
        if place.is_dir():
            return count == len(parts)
    return False
