"""Registering base models. They are immutable: other weights are another base."""

from __future__ import annotations

import json
import re
from typing import Any

from lorry.errors import InvalidRequest
from lorry.layers.spec import DecoderSpec
from lorry.registry import audit, changes
from lorry.registry.authz import Caller, not_visible
from lorry.registry.bases import repository
from lorry.registry.changes import Change, Kind
from lorry.registry.db.conflicts import unique
from lorry.registry.db.engine import Database
from lorry.registry.db.tables import BaseModel
from lorry.registry.idempotency import RequestKey, remember, replay
from lorry.registry.names import check_part
from lorry.registry.paging import Page, PageRequest
from lorry.registry.rights import require

CONFIG_BYTES = 256 << 10

_SHA256 = re.compile(r"[0-9a-f]{64}")


class BaseService:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(
        self,
        caller: Caller,
        name: str,
        base_sha256: str,
        tokenizer_sha256: str,
        config_json: str,
        context_tokens: int = 0,
        request_id: str = "",
    ) -> BaseModel:
        """``context_tokens`` 0 is the config's. Raises InvalidRequest, UnsupportedBase, AlreadyExists."""
        require(caller, "register base models")
        check_part("base_model_id", name)
        check_sha256("base_sha256", base_sha256)
        check_sha256("tokenizer_sha256", tokenizer_sha256)
        config = parse_config(config_json)
        spec = DecoderSpec.from_config(config)
        if not 0 <= context_tokens <= spec.context_tokens:
            raise InvalidRequest.field(
                "context_tokens", f"{context_tokens} is beyond the config's {spec.context_tokens}; use at most that"
            )
        context = context_tokens or spec.context_tokens
        key = RequestKey.of(caller, "CreateBaseModel", request_id, name, base_sha256, tokenizer_sha256, config, context)
        async with self._database.write() as session:
            if await replay(session, key) is not None:
                found = await repository.find(session, name)
                assert found is not None
                return found
            async with unique(session, f"base_model_id: {name!r} is taken; choose another"):
                row = await repository.insert(session, name, base_sha256, tokenizer_sha256, context, config)
            audit.append(session, caller.tenant, caller, "base.create", f"models/{name}", sha256=base_sha256)
            remember(session, key, row.id)
            await changes.record(session, Change(Kind.BASE_MODEL, row.id))
            return row

    async def get(self, caller: Caller, name: str) -> BaseModel:
        async with self._database.read() as session:
            row = await repository.find(session, name)
        if row is None:
            raise not_visible()
        return row

    async def list(self, caller: Caller, page: PageRequest) -> Page[BaseModel]:
        async with self._database.read() as session:
            return page.page(await repository.list_all(session, page), lambda row: row.name)


def check_sha256(field: str, text: str) -> str:
    """``text`` itself, or InvalidRequest."""
    if not _SHA256.fullmatch(text):
        raise InvalidRequest.field(field, f"{text[:80]!r} is not 64 lower-case hex digits")
    return text


def parse_config(text: str) -> dict[str, Any]:
    """A config.json's object, or InvalidRequest."""
    if len(text.encode()) > CONFIG_BYTES:
        raise InvalidRequest.field("config_json", f"{len(text.encode())} bytes; use at most {CONFIG_BYTES}")
    try:
        config = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest.field("config_json", f"is not JSON ({error}); send config.json as it is") from None
    if not isinstance(config, dict):
        raise InvalidRequest.field("config_json", "is not a JSON object; send config.json as it is")
    return config


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


__all__ = ["CONFIG_BYTES", "BaseService", "check_sha256", "parse_config"]
