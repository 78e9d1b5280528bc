"""One's own account: the password."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from lorry.errors import InvalidRequest, LorryError
from lorry_admin.web.login_log import log_login
from lorry_admin.web.remedies import remedy_of
from lorry_admin.web.visits import Posted, Visiting

router = APIRouter()


@router.get("/account")
async def account(visit: Visiting) -> Response:
    return visit.page("account.html", error=None, remedy="")


@router.post("/account/password")
async def change(post: Posted) -> Response:
    """No password comes back in a page, so the form is not filled in again."""
    visit, form = post.visit, post.form
    current, new = form.values.get("password", ""), form.values.get("new_password", "")
    try:
        if new != form.values.get("again", ""):
            raise InvalidRequest.field("again", "differs from the new password; type it twice")
        await visit.site.accounts.change_password(visit.session, current, new, now=visit.site.now())
    except LorryError as error:
        log_login(visit.request, "password", "", visit.session, error)
        remedy = "" if error.http_status == 401 else remedy_of(error)
        return visit.page("account.html", error=error, remedy=remedy, status=min(error.http_status, 403))
    log_login(visit.request, "password", "", visit.session)
    return visit.go("/account", "password-changed")


__all__ = ["account", "change", "router"]
