"""``lorry adapters``: the capability statement, and the report of a folder, without anything started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lorry.adapters.config.fields import FIELDS, INITIALISERS
from lorry.adapters.config.formats import sections
from lorry.cli.app import main
from tests.support.adapters import save_adapter
from tests.support.tiny_base import write_tiny_model


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(base, adapter)."""
    folder = tmp_path_factory.mktemp("cli")
    model = write_tiny_model(folder / "base", "qwen2", num_hidden_layers=1)
    save_adapter(model, folder / "adapter", use_dora=True, bias="all")
    return folder / "base", folder / "adapter"


def test_formats_lists_every_field_and_initialiser(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adapters", "formats", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for peft_type, rules in FIELDS.items():
        listed = {
            row["field"]: row["outcome"] for key in ("fields_both", f"fields_{peft_type.lower()}") for row in found[key]
        }
        assert set(listed) == set(rules)
        served = {name for name, rule in rules.items() if rule.treatment == "served"}
        assert {name for name, outcome in listed.items() if outcome == "served"} == served
    values = [row["value"] for row in found["initialisers"]]
    assert values == [*(json.dumps(known.value) for known in INITIALISERS), "every other"]
    assert [row["peft_type"] for row in found["methods"] if row["outcome"] == "served"] == ["LORA", "IA3"]


def test_formats_as_tables(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["adapters", "formats"]) == 0
    shown = capsys.readouterr().out
    for section in sections():
        assert section.title in shown
        for row in section.rows:
            if len(row[0]) < 40:
                assert row[0].replace("`", "") in shown


def test_validate_says_yes(folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    base, adapter = folders
    assert main(["adapters", "validate", str(adapter), "--base", str(base), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"]
    rows = {row["id"]: row for row in found["checks"]}
    assert {"files", "config", "weights.header", "coverage", "weights.values", "weights.norms", "probe"} <= set(rows)
    assert rows["kind"]["message"] == "DoRA, biases"
    assert all(set(row) == {"id", "outcome", "message", "value", "limit"} for row in found["checks"])


def test_validate_says_no_and_why(
    folders: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    base, adapter = folders
    for file in adapter.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((adapter / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps({**config, "use_dora": False, "made_up": 1}))
    assert main(["adapters", "validate", str(tmp_path), "--base", str(base)]) == 1
    shown = capsys.readouterr().out
    assert "refused" in shown
    assert "config.made_up" in shown
    assert "unknown field" in shown


def test_a_base_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adapters", "validate", str(tmp_path), "--base", str(tmp_path)]) == 1
    assert "config.json is missing" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff"])
def test_a_base_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    assert main(["adapters", "validate", str(tmp_path), "--base", str(tmp_path), "--json"]) == 1
    shown = capsys.readouterr()
    found = json.loads(shown.err)["error"]
    assert found["reason"] == "UNSUPPORTED_BASE"
    assert found["message"].startswith("--base: ")
    assert shown.out == ""
