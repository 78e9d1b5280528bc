"""SQL on base models, which belong to no tenant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from lorry.registry.db.base import new_id
from lorry.registry.db.tables import BaseModel
from lorry.registry.paging import PageRequest


async def find(session: AsyncSession, name: str) -> BaseModel | None:
    return (await session.execute(select(BaseModel).where(BaseModel.name == name))).scalar_one_or_none()


async def list_all(session: AsyncSession, page: PageRequest) -> Sequence[BaseModel]:
    query = select(BaseModel).where(BaseModel.name > page.after).order_by(BaseModel.name).limit(page.size + 1)
    return (await session.execute(query)).scalars().all()


async def insert(
    session: AsyncSession,
    name: str,
    base_sha256: str,
    tokenizer_sha256: str,
    context_tokens: int,
    config: dict[str, Any],
) -> BaseModel:
    row = BaseModel(
        id=new_id("bm"),
        name=name,
        base_sha256=base_sha256,
        tokenizer_sha256=tokenizer_sha256,
        context_tokens=context_tokens,
        config=config,
    )
    session.add(row)
    await session.flush()
    return row


__all__ = ["find", "insert", "list_all"]
