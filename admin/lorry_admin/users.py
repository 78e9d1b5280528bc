"""UserAdminService: translates between the API and the registry's services, and decides nothing."""

from __future__ import annotations

from typing import Any

import grpc.aio
from google.protobuf.empty_pb2 import Empty

from lorry.api.v1 import user_admin_pb2 as pb
from lorry.api.v1 import user_admin_pb2_grpc as pb_grpc
from lorry.registry import Login, PageRequest, Registry, SessionView
from lorry.registry.names import parse_session, parse_tenant, parse_user
from lorry_admin.access import Access
from lorry_admin.messages import role, role_name, seconds
from lorry_admin.prices import PricesAdmin

Context = grpc.aio.ServicerContext[Any, Any]


class UserAdmin(PricesAdmin, pb_grpc.UserAdminServiceServicer):
    """Errors go through as LorryError: the server needs ``lorry.api.status.ErrorInterceptor``."""

    def __init__(self, access: Access, registry: Registry) -> None:
        self._access = access
        self._registry = registry
        self._accounts = registry.accounts

    async def CreateUser(self, request: pb.CreateUserRequest, context: Context) -> pb.CreateUserResponse:
        caller = await self._access.caller(context)
        tenant = parse_tenant("parent", request.parent)
        made, password = await self._accounts.create(
            caller, tenant, request.user_id, role_name(request.role), request.password or None
        )
        return pb.CreateUserResponse(user=_user(made), password=password or "")

    async def GetUser(self, request: pb.GetUserRequest, context: Context) -> pb.User:
        caller = await self._access.caller(context)
        return _user(await self._accounts.get(caller, *parse_user("name", request.name)))

    async def ListUsers(self, request: pb.ListUsersRequest, context: Context) -> pb.ListUsersResponse:
        caller = await self._access.caller(context)
        tenant = parse_tenant("parent", request.parent)
        page = await self._accounts.list(caller, tenant, PageRequest.of(request.page_size, request.page_token))
        return pb.ListUsersResponse(users=[_user(login) for login in page.rows], next_page_token=page.next_token)

    async def UpdateUser(self, request: pb.UpdateUserRequest, context: Context) -> pb.User:
        caller = await self._access.caller(context)
        tenant, user = parse_user("user.name", request.user.name)
        changed = await self._accounts.update(
            caller,
            tenant,
            user,
            list(request.update_mask.paths),
            role=role_name(request.user.role),
            disabled=request.user.disabled,
            etag=request.user.etag,
        )
        return _user(changed)

    async def SetUserPassword(self, request: pb.SetUserPasswordRequest, context: Context) -> pb.SetUserPasswordResponse:
        caller = await self._access.caller(context)
        tenant, user = parse_user("name", request.name)
        changed, password = await self._accounts.set_password(caller, tenant, user, request.password or None)
        return pb.SetUserPasswordResponse(user=_user(changed), password=password or "")

    async def ListSessions(self, request: pb.ListSessionsRequest, context: Context) -> pb.ListSessionsResponse:
        caller = await self._access.caller(context)
        tenant = parse_tenant("parent", request.parent)
        page = await self._accounts.sessions(caller, tenant, PageRequest.of(request.page_size, request.page_token))
        return pb.ListSessionsResponse(sessions=[_session(one) for one in page.rows], next_page_token=page.next_token)

    async def EndSession(self, request: pb.EndSessionRequest, context: Context) -> Empty:
        caller = await self._access.caller(context)
        tenant, session = parse_session("name", request.name)
        await self._accounts.end_session(caller, session, tenant)
        return Empty()


def _user(login: Login) -> pb.User:
    return pb.User(
        name=login.resource,
        username=login.username,
        role=role(login.role),
        disabled=login.disabled,
        create_time=seconds(login.created_at),
        last_login_time=seconds(login.last_login),
        lock_time=seconds(login.locked_until),
        etag=login.etag,
    )


def _session(view: SessionView) -> pb.WebSession:
    return pb.WebSession(
        name=view.resource,
        user=f"tenants/{view.tenant_name}/users/{view.principal}",
        agent=view.agent,
        address=view.address,
        create_time=seconds(view.created_at),
        last_use_time=seconds(view.seen_at),
        expire_time=seconds(view.expires_at),
    )


__all__ = ["UserAdmin"]
