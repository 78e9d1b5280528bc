"""Databases with the registry's schema, as its unit tests have them."""

from __future__ import annotations

from tests.unit.registry.conftest import postgres_template, postgres_url, sqlite_template, url, world

__all__ = ["postgres_template", "postgres_url", "sqlite_template", "url", "world"]
