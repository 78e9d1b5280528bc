"""One furnished platform for all walks, which change nothing of it that others look at, and prove that; and one of its
own for each test of what is said."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from tests.security.calls import CALLS
from tests.security.leaks import Said, listening
from tests.security.places import ANSWER, PASSWORD, PROMPT, S3_SECRET, Place
from tests.security.world import Names, World, world
from tests.unit.engine_contract.fakes import tokenizer


@dataclass
class Street:
    """Two tenants who know nothing of each other, each with one of every kind of resource."""

    world: World
    anna: Names
    bert: Names


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def street(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Street]:
    async with world(tmp_path_factory.mktemp("street")) as here:
        for name in ("anna", "bert"):
            await here.tenant(name, "owner", "member")
        made = Street(here, await here.furnish("anna"), await here.furnish("bert"))
        path = "lorry.api.v1.GenerateService/Generate"
        assert (await here.call(path, CALLS[path].request(made.anna), here.keys["anna member"])).code == "OK"
        yield made


@pytest.fixture
async def place(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> AsyncIterator[Place]:
    """A platform whose every word is heard from its first start on."""
    said = Said({"database password": PASSWORD, "S3 secret": S3_SECRET, "prompt": PROMPT, "answer": ANSWER})
    with listening(said):
        async with world(tmp_path) as here:
            await here.tenant("anna", "owner", "member")
            for who, key in here.keys.items():
                said.secrets[f"key of {who}"] = key.rpartition("_")[2]
            folder = tmp_path / "home" / "secrets"
            for name in ("key_pepper", "kv_salt"):
                text = (folder / name).read_text().strip()
                said.secrets[name] = text
                said.secrets[f"{name} as bytes"] = repr(bytes.fromhex(text))[2:-1]
            said.secrets["MAC of a key"] = here.registry.peppers.mac(
                here.keys["anna owner"], here.registry.peppers.current_id
            )
            here.engine.script = lambda request: tokenizer().encode(ANSWER, add_special=False)
            yield Place(here, said, tmp_path / "home")
    for where, text in zip(("standard output", "standard error"), capfd.readouterr(), strict=True):
        said.hear(where, text)
    assert said.leaks() == []
