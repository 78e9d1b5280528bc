"""Who did what. Appended in the transaction of the change, so neither is there without the other."""

from __future__ import annotations

from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from lorry.registry.authz import Caller, VerifiedTenantId
from lorry.registry.db.base import new_id
from lorry.registry.db.tables import AuditEvent


def append(
    session: AsyncSession, tenant: VerifiedTenantId, caller: Caller, action: str, subject: str, **details: Any
) -> None:
    """``tenant`` is whose matter it is; ``caller`` who did it. ``details`` never hold secrets or prompts."""
    session.add(
        AuditEvent(
            id=new_id("au"),
            tenant_id=tenant,
            actor_key_id=caller.key_id,
            action=action,
            subject=subject,
            details=details,
        )
    )


__all__ = ["append"]
