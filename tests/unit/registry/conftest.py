"""Every registry test runs on SQLite and on PostgreSQL. The schema is made by the migrations, once."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from lorry.registry import Caller, PasswordParams, Peppers, Registry, SnapshotSource, migrate_sync
from lorry.registry.bootstrap import _first_admin
from tests.support.memory_folders import folder_in_memory
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
    _execute(postgres_url, 'CREATE DATABASE "lorry_template"')
    migrate_sync(postgres_url.format(name="lorry_template"))
    return "lorry_template"


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("registry") / "template.db"
    migrate_sync(f"sqlite:///{path}")
    return path


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A database without any table."""
    if request.param == "sqlite":
        with folder_in_memory("lorry-sqlite-") as folder:
            yield f"sqlite:///{folder / 'empty.db'}"
    else:
        with _database(request.getfixturevalue("postgres_url"), "template1") as url:
            yield url


@pytest.fixture
def sqlite_url(sqlite_template: Path) -> Iterator[str]:
    """For tests in which no database has a part."""
    with _file(sqlite_template) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A database with the schema and no rows."""
    with database(request) as url:
        yield url


@contextmanager
def database(request: pytest.FixtureRequest) -> Iterator[str]:
    """Of the kind that the fixture's parameter names."""
    if request.param == "sqlite":
        with _file(request.getfixturevalue("sqlite_template")) as url:
            yield url
    else:
        template = request.getfixturevalue("postgres_template")
        with _database(request.getfixturevalue("postgres_url"), template) as url:
            yield url


@contextmanager
def _file(template: Path) -> Iterator[str]:
    with folder_in_memory("lorry-sqlite-") as folder:
        shutil.copy(template, folder / "registry.db")
        yield f"sqlite:///{folder / 'registry.db'}"


@contextmanager
def _database(url: str, template: str) -> Iterator[str]:
    """A copy of its files, not of each page by way of the log. Dropped afterwards: hundreds of them would take minutes
    when the server goes."""
    name = f"lorry_test_{next(_COUNTER)}"
    with psycopg.connect(url.format(name="postgres"), autocommit=True) as connection:
        strategy = "STRATEGY FILE_COPY" if connection.info.server_version >= 150_000 else ""
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}" {strategy}'.encode())
    try:
        yield url.format(name=name)
    finally:
        _execute(url, f'DROP DATABASE "{name}" WITH (FORCE)')


def _execute(url: str, statement: str) -> None:
    with psycopg.connect(url.format(name="postgres"), autocommit=True) as connection:
        connection.execute(statement.encode())


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


@asynccontextmanager
async def opened(url: str, admin_key: str | None = None) -> AsyncIterator[World]:
    """With the first administrator's key, which is made where none is given."""
    registry = Registry(url, PEPPERS, CHEAP)
    key = admin_key or await _first_admin(registry.database, PEPPERS)
    assert key is not None
    source = registry.snapshots()
    admin = (await source.start()).authenticate(key, NOW)
    yield World(registry, source, admin, key)
    await registry.close()


@pytest.fixture
async def world(url: str) -> AsyncIterator[World]:
    async with opened(url) as made:
        yield made


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
