"""``lorry bases``: a base is registered from the folder that an engine serves, with the digests that it states."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from lorry.layers.base_files import base_digest
from lorry.text import tokenizer_digest
from tests.integration.admin.conftest import Platform, platform
from tests.integration.cli.conftest import Terminal
from tests.support.tiny_base import write_tiny_base
from tests.unit.registry.conftest import postgres_template, postgres_url, sqlite_template, url

__all__ = ["platform", "postgres_template", "postgres_url", "sqlite_template", "url"]


async def test_a_base_is_registered_by_its_folder(platform: Platform, nowhere: Terminal, tmp_path: Path) -> None:
    nowhere.set(LORRY_ADDRESS=platform.address, LORRY_API_KEY=platform.admin.key)
    folder = tmp_path / "base"
    write_tiny_base(folder)
    own = json.loads((folder / "config.json").read_text())["max_position_embeddings"]
    said = await asyncio.to_thread(nowhere, "bases", "create", "tiny", str(folder))
    digest = base_digest(folder)
    assert (said.status, said.out) == (
        0,
        f"models/tiny is registered, {own} tokens of context  sha256 {digest}\n",
    ), said.err
    found = (await asyncio.to_thread(nowhere, "bases", "show", "models/tiny", "--json")).json
    assert (found["baseSha256"], found["tokenizerSha256"]) == (digest, tokenizer_digest(folder))
    assert json.loads(found["configJson"]) == json.loads((folder / "config.json").read_text())

    short = await asyncio.to_thread(nowhere, "bases", "create", "short", str(folder), "--context-tokens", "16")
    assert "16 tokens of context" in short.out, short.err
    again = await asyncio.to_thread(nowhere, "bases", "create", "tiny", str(folder))
    assert (again.status, "ALREADY_EXISTS" in again.err) == (1, True)
    listed = await asyncio.to_thread(nowhere, "bases", "list", "--json")
    assert [one["name"] for one in listed.json["baseModels"]] == ["models/short", "models/tiny"]


async def test_a_folder_that_is_no_base_is_refused_by_name(nowhere: Terminal, tmp_path: Path) -> None:
    """Nothing is sent: there is no server."""
    nowhere.set(LORRY_ADDRESS="127.0.0.1:1", LORRY_API_KEY="k")
    said = await asyncio.to_thread(nowhere, "bases", "create", "tiny", str(tmp_path / "none"))
    assert said.status == 1
    assert said.err.startswith("lorry: INVALID_ARGUMENT UNSUPPORTED_BASE: base directory")
    assert "has no config.json" in said.err
