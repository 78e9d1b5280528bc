"""Every registry test runs on SQLite and on PostgreSQL. The schema is made by the migrations, once."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from lorry.registry import Caller, PasswordParams, Peppers, Registry, SnapshotSource, migrate_sync
from lorry.registry.bootstrap import _first_admin
from tests.unit.registry import postgres

PEPPERS = Peppers((b"p" * 32,))
CHEAP = PasswordParams(passes=1, memory_kib=8)
"""Tests prove nothing by slow hashes."""
NOW = 2_000_000_000.0
_COUNTER = itertools.count()


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    folder = postgres.binaries()
    if folder is None:
        pytest.skip("PostgreSQL is not installed; on Debian: apt-get install postgresql")
    with postgres.running(folder) as url:
        yield url


@pytest.fixture(scope="session")
def postgres_template(postgres_url: str) -> str:
    _create(postgres_url, "template", "template1")
    migrate_sync(postgres_url.format(name="lorry_template"))
    return "lorry_template"


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("registry") / "template.db"
    migrate_sync(f"sqlite:///{path}")
    return path


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without any table."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'empty.db'}"
    return _create(request.getfixturevalue("postgres_url"), f"empty_{next(_COUNTER)}", "template1")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database with the schema and no rows."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("sqlite_template"), tmp_path / "registry.db")
        return f"sqlite:///{tmp_path / 'registry.db'}"
    template = request.getfixturevalue("postgres_template")
    return _create(request.getfixturevalue("postgres_url"), f"test_{next(_COUNTER)}", template)


def _create(url: str, name: str, template: str) -> str:
    with psycopg.connect(url.format(name="postgres"), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "lorry_{name}" TEMPLATE "{template}"'.encode())
    return url.format(name=f"lorry_{name}")


@dataclass
class World:
    """An opened registry with an administrator, a snapshot source, and short ways to make things."""

    registry: Registry
    source: SnapshotSource
    admin: Caller
    admin_key: str

    async def caller(self, tenant: str, role: str = "owner") -> Caller:
        key = await self.key(tenant, role)
        return (await self.source.refresh()).authenticate(key, NOW)

    async def key(self, tenant: str, role: str = "owner") -> str:
        _, text = await self.registry.keys.create(self.admin, tenant, role, role)
        return text


@pytest.fixture
async def world(url: str) -> AsyncIterator[World]:
    registry = Registry(url, PEPPERS, CHEAP)
    key = await _first_admin(registry.database, PEPPERS)
    assert key is not None
    source = registry.snapshots()
    admin = (await source.start()).authenticate(key, NOW)
    yield World(registry, source, admin, key)
    await registry.close()


TINY_CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 128,
    "max_position_embeddings": 256,
}
