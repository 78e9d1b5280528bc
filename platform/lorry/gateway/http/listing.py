"""``/v1/models``: what the caller may use, under every name that ``model`` takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl

from lorry.api.v1 import generate_pb2 as pb
from lorry.errors import InvalidRequest
from lorry.gateway.checks import Violations
from lorry.gateway.context import CallContext
from lorry.gateway.models import Catalog, Models

PAGE_MAX = 1000
"""Bare names of one answer; each comes with its aliases."""


async def list_models(models: Models, context: CallContext, query: bytes) -> dict[str, Any]:
    """Bases and adapters by their bare names, each followed by its aliases. ``?after=`` a bare name and ``?limit=``
    page. Raises InvalidRequest for another parameter."""
    catalog = await models.seen_by(context)
    after, limit = _read_query(query)
    page, more = catalog.page(after, limit)
    return {
        "object": "list",
        "data": [entry for model in page for entry in _entries(catalog, model)],
        "has_more": more,
        "last_id": page[-1].name if page else None,
    }


async def show_model(models: Models, context: CallContext, name: str) -> dict[str, Any]:
    return _entry((await models.seen_by(context)).get(name, "model"))


def _entries(catalog: Catalog, model: pb.Model) -> Iterator[dict[str, Any]]:
    yield _entry(model)
    for alias in model.aliases:
        yield _entry(catalog.get(alias, "model"))


def _entry(model: pb.Model) -> dict[str, Any]:
    """``created`` is 0 where the registry does not say."""
    parts = model.name.split("/")
    return {
        "id": model.name,
        "object": "model",
        "created": model.create_time.seconds,
        "owned_by": parts[1] if parts[0] == "tenants" else "lorry",
        "lorry": {
            "base": model.base,
            "version": model.version,
            "sha256": model.sha256,
            "base_sha256": model.base_sha256,
            "tokenizer_sha256": model.tokenizer_sha256,
            "context_tokens": model.context_tokens,
            "aliases": list(model.aliases),
        },
    }


def _read_query(query: bytes) -> tuple[str, int]:
    after, limit = "", PAGE_MAX
    bad = Violations()
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, max_num_fields=8, errors="strict")
    except ValueError:
        raise InvalidRequest.field("query", "not readable; send after and limit alone") from None
    for name, value in pairs:
        if name == "after":
            after = value
        elif name == "limit" and value.isascii() and value.isdigit() and len(value) < 9 and 1 <= int(value) <= PAGE_MAX:
            limit = int(value)
        elif name == "limit":
            bad.add("limit", f"{value[:80]!r}; send 1 to {PAGE_MAX}")
        else:
            bad.add(name[:80], "unknown parameter; leave it out")
    bad.raise_if_any()
    return after, limit


__all__ = ["PAGE_MAX", "list_models", "show_model"]
