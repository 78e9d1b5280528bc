"""Alembic's environment. The database comes from the caller (``connection`` or ``url`` in the config's
attributes), else from ``-x url=...`` or LORRY_REGISTRY_URL, else the file under LORRY_HOME."""

from __future__ import annotations

import os

from alembic import context
from sqlalchemy import Connection, create_engine, text

from lorry.config import lorry_home, registry_url
from lorry.registry.db import tables
from lorry.registry.db.base import Model
from lorry.registry.db.engine import async_url

LOCK_ID = 0x6C6F727279  # "lorry"
LOCK_TIMEOUT = "5s"
STATEMENT_TIMEOUT = "60s"

assert tables.Tenant.metadata is Model.metadata


def _url() -> str:
    arguments = context.get_x_argument(as_dictionary=True)
    found = context.config.attributes.get("url") or arguments.get("url") or os.environ.get("LORRY_REGISTRY_URL")
    return str(found or registry_url(lorry_home()))


def _migrate(connection: Connection) -> None:
    postgresql = connection.dialect.name == "postgresql"
    if postgresql:
        # One migrator at a time; and a lock that cannot be had must not queue all traffic behind it.
        connection.execute(text(f"SET lock_timeout = '{LOCK_TIMEOUT}'"))
        connection.execute(text(f"SET statement_timeout = '{STATEMENT_TIMEOUT}'"))
        connection.execute(text("SELECT pg_advisory_lock(:id)"), {"id": LOCK_ID})
        connection.commit()
    else:
        connection.exec_driver_sql("PRAGMA foreign_keys=OFF")  # a batch operation rebuilds a table
        connection.commit()
    try:
        context.configure(
            connection=connection,
            target_metadata=Model.metadata,
            render_as_batch=not postgresql,
            compare_type=True,
            compare_server_default=True,
            transaction_per_migration=True,
        )
        with context.begin_transaction():
            context.run_migrations()
        if not postgresql:
            broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
            if broken:
                raise RuntimeError(f"the migration left rows without their parents: {broken[:5]}")
    finally:
        if postgresql:
            connection.rollback()
            connection.execute(text("SELECT pg_advisory_unlock(:id)"), {"id": LOCK_ID})
            connection.commit()


def _run() -> None:
    if context.is_offline_mode():
        context.configure(url=_url(), target_metadata=Model.metadata, literal_binds=True)
        with context.begin_transaction():
            context.run_migrations()
        return
    given = context.config.attributes.get("connection")
    if given is not None:
        _migrate(given)
        return
    target = async_url(_url())
    if target.get_backend_name() == "sqlite":
        target = target.set(drivername="sqlite")
    engine = create_engine(target, hide_parameters=True)
    with engine.connect() as connection:
        _migrate(connection)
    engine.dispose()


_run()
