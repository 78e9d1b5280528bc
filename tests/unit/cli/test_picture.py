"""The demo's picture: whole, self-contained, and of tables alone."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from rich.table import Table

from lorry.cli.app import build_parser
from lorry.cli.demo.picture import Picture
from lorry.errors import InvalidRequest


def _table(text: str) -> Table:
    table = Table("adapter")
    table.add_row(text)
    return table


def test_tables_come_in_their_order_and_nothing_is_fetched(tmp_path: Path) -> None:
    file = tmp_path / "demo.svg"
    picture = Picture(file)
    picture.add(_table("first"))
    picture.add(_table("second"))
    picture.save()
    drawn = file.read_text(encoding="utf-8")
    ET.fromstring(drawn)
    assert 0 < drawn.index("first") < drawn.index("second")
    assert "url(" not in re.sub(r"url\(#[\w-]+\)", "", drawn)
    assert "@font-face" not in drawn


def test_without_a_file_nothing_is_written(tmp_path: Path) -> None:
    picture = Picture(None)
    picture.add(_table("first"))
    picture.save()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_told_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"svg: .* is not a folder"):
        Picture(tmp_path / "no" / "demo.svg")


def test_the_command_takes_it() -> None:
    assert build_parser().parse_args(["demo", "--svg", "demo.svg"]).svg == Path("demo.svg")


def test_the_committed_picture_tells_nothing_of_its_machine() -> None:
    drawn = (Path(__file__).parents[3] / "docs" / "demo.svg").read_text(encoding="utf-8")
    ET.fromstring(drawn)
    assert not re.search(r"lorry_[0-9a-f]{8}|/home/|/root/|/tmp/|/Users/|127\.0\.0\.1:", drawn)
