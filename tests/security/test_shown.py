"""What is printed: no control character of a model's on a terminal, no secret field in a ``repr``."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import lorry
from lorry import errors
from lorry.cli.output import written
from lorry.cli.remedies import print_error


def test_terminals_get_no_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a model or a server wrote moves no cursor; what goes into a pipe is as it came."""
    evil = "a\x1b[2J\x9b2J\x07b\tc\nd\u200de"
    assert written(evil) == evil
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert written(evil) == "a[2J2Jb\tc\nd\u200de"
    print_error(errors.InvalidRequest(f"field: {evil}"), as_json=False)
    told = capsys.readouterr().err
    assert told.strip().isprintable()


SENSITIVE = {
    "access_key", "admin_key", "answer", "api_key", "cache_salt", "keys", "kv_salt", "logprobs", "mac", "password",
    "pepper", "peppers", "prompt", "prompt_logprobs", "salt", "salts", "secret", "secret_key", "secrets", "spare",
    "tenant_salt", "text", "token", "token_ids", "tokens",
}  # fmt: skip
HARMLESS = {
    ("Choice", "text"), ("Choice", "token_ids"), ("Delta", "text"), ("Delta", "token_ids"),  # a client's own answer
    ("Choice", "logprobs"), ("Delta", "logprobs"), ("Result", "prompt_logprobs"),
    ("_Growing", "text"), ("_Growing", "token_ids"), ("_Growing", "logprobs"),
    ("Outer", "spare"), ("_Question", "answer"), ("Admitted", "answer"),  # no text: how one is to look
    ("Call", "text"),  # of the demo, whose prompts are printed
    ("Tables", "keys"),  # entries, whose own repr hides the MAC
    ("Entry", "keys"),  # hashes of KV blocks
    ("LoraFields", "tokens"), ("EmbeddingPlan", "token_ids"), ("HeadPlan", "token_ids"), ("HeadExtras", "token_ids"),
    ("OutputParams", "prompt_logprobs"),  # how many are wanted
    ("Tick", "text"), ("Bills", "prompt"), ("Price", "prompt"),  # of a chart, tokens, an amount
}  # fmt: skip
_HIDDEN = re.compile(r"repr=False")


def test_no_dataclass_prints_what_is_secret() -> None:
    """Every field with a telling name is left out of its ``repr``, or is named here as harmless."""
    root = Path(lorry.__file__).parents[2]
    found = []
    for path in sorted([*root.glob("platform/lorry/**/*.py"), *root.glob("admin/**/*.py")]):
        source = path.read_text()
        for node in ast.walk(ast.parse(source)) if "@dataclass" in source else ():
            if not isinstance(node, ast.ClassDef):
                continue
            made = [ast.unparse(one) for one in node.decorator_list if "dataclass" in ast.unparse(one)]
            if not made or _HIDDEN.search(made[0]):
                continue
            for field in node.body:
                if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
                    continue
                name, kind = field.target.id, ast.unparse(field.annotation)
                hidden = field.value is not None and _HIDDEN.search(ast.unparse(field.value))
                number = name in ("tokens", "text") and kind not in ("str", "tuple[int, ...]", "list[str]")
                number |= kind.startswith(("bool", "type["))
                if name in SENSITIVE and not hidden and not number and (node.name, name) not in HARMLESS:
                    found.append(f"{path.relative_to(root)}: {node.name}.{name}: {kind}")
    assert found == []
