"""A tenant's users and their sessions."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from starlette.responses import Response

from lorry.client.admin.users import (
    create_user,
    end_session,
    list_sessions,
    list_users,
    set_user_password,
    update_user,
)
from lorry_admin.web.pages.keys import ROLES
from lorry_admin.web.rights import Right
from lorry_admin.web.visits import Posted, Visiting

router = APIRouter()
_USERS = "/tenants/{tenant}/users"


@router.get(_USERS)
async def users(visit: Visiting) -> Response:
    """Operators see the sessions alone."""
    sessions_due = visit.listed(list_sessions(visit.tenant), name="sessions")
    if Right.KEYS not in visit.rights:
        return visit.page("users.html", listed=None, sessions=await sessions_due, roles=ROLES)
    listed, sessions = await asyncio.gather(visit.listed(list_users(visit.tenant)), sessions_due)
    return visit.page("users.html", listed=listed, sessions=sessions, roles=ROLES)


@router.post(_USERS)
async def create(post: Posted) -> Response:
    """The answer shows the password that was made; no redirect could carry it."""
    visit, form = post.visit, post.form
    made = await visit.ask(create_user(visit.tenant, form.text("user"), form.text("role")))
    return visit.page("password.html", user=made.user, password=made.password, title="User created")


@router.post(_USERS + "/{user}/role")
async def change_role(post: Posted, user: str) -> Response:
    visit, form = post.visit, post.form
    await visit.ask(update_user(f"tenants/{visit.tenant}/users/{user}", role=form.text("role"), etag=form.text("etag")))
    return visit.go(f"/tenants/{visit.tenant}/users", "user-changed")


@router.post(_USERS + "/{user}/disable")
async def disable(post: Posted, user: str) -> Response:
    """``disabled`` says which way."""
    visit, form = post.visit, post.form
    name = f"tenants/{visit.tenant}/users/{user}"
    await visit.ask(update_user(name, disabled=form.checked("disabled"), etag=form.text("etag")))
    return visit.go(f"/tenants/{visit.tenant}/users", "user-changed")


@router.post(_USERS + "/{user}/password")
async def password(post: Posted, user: str) -> Response:
    visit = post.visit
    made = await visit.ask(set_user_password(f"tenants/{visit.tenant}/users/{user}"))
    return visit.page("password.html", user=made.user, password=made.password, title="Password made")


@router.post("/tenants/{tenant}/sessions/{session}/end")
async def end(post: Posted, session: str) -> Response:
    visit = post.visit
    await visit.ask(end_session(f"tenants/{visit.tenant}/sessions/{session}"))
    return visit.go(f"/tenants/{visit.tenant}/users", "session-ended")


__all__ = ["change_role", "create", "disable", "end", "password", "router", "users"]
