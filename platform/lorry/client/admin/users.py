"""Users and their sessions, prepared. ``user`` is `tenants/{t}/users/{u}`. A password that was made is in its answer
and nowhere else, so a call that makes one is never sent twice."""

from __future__ import annotations

from google.protobuf.empty_pb2 import Empty
from google.protobuf.field_mask_pb2 import FieldMask

from lorry.api.v1 import user_admin_pb2 as pb
from lorry.client.admin.keys import role_of
from lorry.client.admin.names import tenant_name
from lorry.client.prepared import PAGE_SIZE, USERS, Paged, Unary


def create_user(tenant: str, user_id: str, role: str, *, password: str = "") -> Unary[pb.CreateUserResponse]:
    """``role``: one of ``ROLES``. Without a password one is made, and is in the answer, told this once."""
    request = pb.CreateUserRequest(parent=tenant_name(tenant), user_id=user_id, role=role_of(role), password=password)
    return USERS.unary("CreateUser", request, pb.CreateUserResponse, repeatable=False)


def get_user(user: str) -> Unary[pb.User]:
    """One user."""
    return USERS.unary("GetUser", pb.GetUserRequest(name=user), pb.User)


def list_users(tenant: str) -> Paged[pb.User]:
    """A tenant's, by name."""
    request = pb.ListUsersRequest(parent=tenant_name(tenant), page_size=PAGE_SIZE)
    return USERS.paged("ListUsers", request, pb.ListUsersResponse, lambda page: page.users)


def update_user(user: str, *, role: str | None = None, disabled: bool | None = None, etag: str = "") -> Unary[pb.User]:
    """Changes what is not None. Who is disabled is logged out; who is enabled is not locked any more."""
    changed, mask = pb.User(name=user, etag=etag), FieldMask()
    if role is not None:
        changed.role = role_of(role)
        mask.paths.append("role")
    if disabled is not None:
        changed.disabled = disabled
        mask.paths.append("disabled")
    request = pb.UpdateUserRequest(user=changed, update_mask=mask)
    return USERS.unary("UpdateUser", request, pb.User, repeatable=not etag)


def set_user_password(user: str, password: str = "") -> Unary[pb.SetUserPasswordResponse]:
    """Logs the user out everywhere. Without a password one is made, and is in the answer, told this once."""
    request = pb.SetUserPasswordRequest(name=user, password=password)
    return USERS.unary("SetUserPassword", request, pb.SetUserPasswordResponse, repeatable=False)


def list_sessions(tenant: str) -> Paged[pb.WebSession]:
    """Those of a tenant's users that live."""
    request = pb.ListSessionsRequest(parent=tenant_name(tenant), page_size=PAGE_SIZE)
    return USERS.paged("ListSessions", request, pb.ListSessionsResponse, lambda page: page.sessions)


def end_session(name: str) -> Unary[Empty]:
    """Ends `tenants/{t}/sessions/{id}`. Again: no change."""
    return USERS.unary("EndSession", pb.EndSessionRequest(name=name), Empty)


__all__ = [
    "create_user",
    "end_session",
    "get_user",
    "list_sessions",
    "list_users",
    "set_user_password",
    "update_user",
]
