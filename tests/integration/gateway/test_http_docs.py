"""The snippets of docs/http.md, run."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.integration.gateway.web import address, web

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "http.md").read_text()
SNIPPETS = re.findall(r"```(bash|python)\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(("kind", "text"), SNIPPETS, ids=[f"{kind} {i}" for i, (kind, _) in enumerate(SNIPPETS)])
async def test_snippet(kind: str, text: str) -> None:
    if kind == "bash" and shutil.which("curl") is None:
        pytest.skip("curl is not installed here")
    command = ["bash", "-ec", text] if kind == "bash" else [sys.executable, "-c", text]
    async with web() as here:
        own = {"OPENAI_BASE_URL": f"{address(here)}/v1", "LORRY_API_KEY": here.keys["acme"]}
        child = await asyncio.create_subprocess_exec(
            *command, env={**os.environ, **own}, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        said, _ = await asyncio.wait_for(child.communicate(), 60)
    assert child.returncode == 0, said.decode()
    assert b'"error"' not in said, said.decode()
    assert said


def test_there_are_both_kinds() -> None:
    assert {kind for kind, _ in SNIPPETS} == {"bash", "python"}
