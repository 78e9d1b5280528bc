"""A registry elsewhere than in the home: its URL, whether it answers, and its first start. Errors name the database and
never the password that its URL may hold."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psycopg
from sqlalchemy import exc
from sqlalchemy.engine import make_url

from lorry.errors import FailedPrecondition, InvalidRequest, LorryError, Unavailable
from lorry.registry.bootstrap import Bootstrap, bootstrap
from lorry.registry.db.engine import async_url, create_engine
from lorry.registry.entries import KeyEntry
from lorry.registry.keys import Peppers, pepper_id
from lorry.registry.secretfiles import PEPPER_VARIABLE, SecretError

REGISTRY_VARIABLE = "LORRY_REGISTRY_URL"
"""A password is better kept here than on a command line."""
CONNECT_S = 5
"""How long a database that says nothing is waited for, in all."""


def check_url(url: str, name: str) -> str:
    """``url`` itself. Raises InvalidRequest naming ``name``, where it is none of SQLite or PostgreSQL."""
    remedy = "write sqlite:////folder/file or postgresql://USER@HOST/DATABASE"
    try:
        found = async_url(url)
    except (exc.ArgumentError, ValueError):  # their words may hold the password
        raise InvalidRequest.field(name, f"it is not the URL of a database that Lorry can use; {remedy}") from None
    if found.get_backend_name() == "sqlite" and found.database in (None, "", ":memory:"):
        raise InvalidRequest.field(name, f"a registry in memory would be lost; {remedy}")
    if found.get_backend_name() == "postgresql" and not found.database:
        raise InvalidRequest.field(name, f"it names no database; {remedy}")
    return url


def shown(url: str) -> str:
    """For people's eyes: without password and options."""
    found = make_url(url)
    if found.get_backend_name() == "sqlite":
        return f"sqlite:///{found.database}"
    user = f"{found.username}@" if found.username else ""
    host = str(found.host or found.query.get("host") or "")
    return f"postgresql://{user}{host}{f':{found.port}' if found.port else ''}/{found.database}"


async def open_registry(home: Path, url: str, name: str, environ: Mapping[str, str] = os.environ) -> Bootstrap:
    """``bootstrap`` of a checked ``url``, which ``name`` (a flag, say) gave. What the database or the machine's secrets
    have against it is one line, with what to do.

    Raises Unavailable or FailedPrecondition.
    """
    where = f"{name}: {shown(url)}"
    await _reach(url, where)
    with _explained(where):
        try:
            return await bootstrap(home, url, environ)
        except SecretError as error:
            raise FailedPrecondition(f"{name}: {error}; processes on one registry share its secrets") from error


async def _reach(url: str, where: str) -> None:
    """A driver of its own accord waits for minutes."""
    target = async_url(url)
    if target.get_backend_name() == "sqlite":
        folder = Path(str(target.database)).parent
        if not folder.is_dir():
            raise FailedPrecondition(f"{where}: there is no folder {folder}; make it, or correct the URL")
        return
    engine = create_engine(url)
    options = dict(engine.dialect.create_connect_args(target)[1])
    options.setdefault("connect_timeout", CONNECT_S)
    try:
        async with await psycopg.AsyncConnection.connect(**options) as connection:
            await connection.execute("SELECT 1")
    except (psycopg.Error, OSError) as error:
        remedy = "see that it runs and that user, password and database are right"
        raise Unavailable(f"{where} does not answer ({_first_line(error)}); {remedy}") from None
    finally:
        await engine.dispose()


@contextmanager
def _explained(where: str) -> Iterator[None]:
    try:
        yield
    except LorryError as error:
        raise type(error)(f"{where}: {error.message}", retry_after_s=error.retry_after_s) from error
    except exc.DBAPIError as error:
        why = _first_line(error.orig or error)
        raise FailedPrecondition(f"{where} cannot be migrated ({why}); its user has to own the schema") from None


def check_peppers(keys: Iterable[KeyEntry], peppers: Peppers, name: str) -> None:
    """Raises FailedPrecondition where none of the registry's keys was made with a pepper of this machine: it would
    refuse them all."""
    ours = {pepper_id(secret) for secret in peppers.secrets}
    made_with = {key.pepper_id for key in keys if key.revoked_at is None}
    if made_with and not made_with & ours:
        raise FailedPrecondition(
            f"{name}: the registry's keys were made with another pepper than this machine's, and none would be good "
            f"here; copy the secrets folder of the process that made the registry into this home, or set "
            f"{PEPPER_VARIABLE} to the same"
        )


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


__all__ = ["CONNECT_S", "REGISTRY_VARIABLE", "check_peppers", "check_url", "open_registry", "shown"]
