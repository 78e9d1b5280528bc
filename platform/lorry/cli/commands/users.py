"""``lorry users``: who logs in to the dashboards."""

from __future__ import annotations

import argparse

from lorry.api.v1 import tenant_admin_pb2
from lorry.api.v1 import user_admin_pb2 as pb
from lorry.cli.asking import secret
from lorry.cli.commands.parsing import Commands, add_etag, group, remote
from lorry.cli.output import as_json, print_json, printable, say, show, show_all, when, word
from lorry.cli.session import session

ROLES = ("viewer", "member", "operator", "owner", "admin")


def register(commands: Commands) -> None:
    actions = group(commands, "users", "who logs in to the dashboards")
    made = remote(actions, "create", "make a user; its password alone goes to standard output, this once", _create)
    made.add_argument("name", help="the {u} of tenants/{t}/users/{u}; it logs in as {u}@{t}")
    made.add_argument("--role", choices=ROLES, default="viewer", help="(default: viewer)")
    _add_own_password(made)
    remote(actions, "list", "a tenant's users", _list)
    ranked = remote(actions, "set-role", "change what a user and its API keys may do", _set_role)
    ranked.add_argument("name", help="its id, or its full name")
    ranked.add_argument("role", choices=ROLES, help="viewer, member, operator, owner or admin")
    add_etag(ranked)
    disabled = remote(actions, "disable", "log a user out, and in no more", _disable)
    disabled.add_argument("name", help="its id, or its full name")
    add_etag(disabled)
    enabled = remote(actions, "enable", "let a user log in again, locked or disabled", _enable)
    enabled.add_argument("name", help="its id, or its full name")
    add_etag(enabled)
    word_ = remote(actions, "password", "put a password in place of a user's, and log it out everywhere", _password)
    word_.add_argument("name", help="its id, or its full name")
    _add_own_password(word_)
    remote(actions, "sessions", "who is logged in", _sessions)
    ended = remote(actions, "end-session", "log a browser out", _end_session)
    ended.add_argument("name", help="the session's id, or its full name")


def _add_own_password(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--own-password",
        action="store_true",
        help="type it unseen, or send it to standard input (default: one is made)",
    )


def _typed(options: argparse.Namespace) -> str:
    return secret("password: ") if options.own_password else ""


def _create(options: argparse.Namespace) -> int:
    here = session(options)
    password = _typed(options)
    with here.admin() as admin:
        made = admin.create_user(here.own_tenant(), options.name, options.role, password=password)
    _show_made(options, made, f"{made.user.name} logs in as {made.user.username}")
    return 0


def _password(options: argparse.Namespace) -> int:
    here = session(options)
    name, password = here.child(options.name, "users"), _typed(options)
    with here.admin() as admin:
        made = admin.set_user_password(name, password)
    _show_made(options, made, f"{made.user.name} is logged out and has another password")
    return 0


def _show_made(
    options: argparse.Namespace, made: pb.CreateUserResponse | pb.SetUserPasswordResponse, done: str
) -> None:
    if options.json:
        print_json(as_json(made))
    elif made.password:
        say(printable(f"{done}; the password is shown this once:"))
        print(printable(made.password))
    else:
        print(printable(done))


def _list(options: argparse.Namespace) -> int:
    here = session(options)
    with here.admin() as admin:
        show_all(
            options,
            "users",
            admin.list_users(here.own_tenant()),
            ("name", "logs in as", "role", "disabled", "locked until", "created", "last login", "etag"),
            lambda user: (
                user.name,
                user.username,
                _role(user),
                "yes" if user.disabled else "-",
                when(user, "lock_time") or "-",
                when(user, "create_time"),
                when(user, "last_login_time"),
                user.etag,
            ),
        )
    return 0


def _set_role(options: argparse.Namespace) -> int:
    here = session(options)
    name = here.child(options.name, "users")
    with here.admin() as admin:
        found = admin.update_user(name, role=options.role, etag=options.etag)
    show(options, found, lambda user: f"{user.name} is {_role(user)} (etag {user.etag})")
    return 0


def _disable(options: argparse.Namespace) -> int:
    return _switch(options, True)


def _enable(options: argparse.Namespace) -> int:
    return _switch(options, False)


def _switch(options: argparse.Namespace, disabled: bool) -> int:
    here = session(options)
    name = here.child(options.name, "users")
    with here.admin() as admin:
        found = admin.update_user(name, disabled=disabled, etag=options.etag)
    state = "is disabled and logged out" if disabled else "may log in"
    show(options, found, lambda user: f"{user.name} {state} (etag {user.etag})")
    return 0


def _sessions(options: argparse.Namespace) -> int:
    here = session(options)
    with here.admin() as admin:
        show_all(
            options,
            "sessions",
            admin.list_sessions(here.own_tenant()),
            ("name", "user", "from", "began", "last used", "expires", "browser"),
            lambda one: (
                one.name,
                one.user.rpartition("/")[2],
                one.address,
                when(one, "create_time"),
                when(one, "last_use_time"),
                when(one, "expire_time"),
                one.agent,
            ),
        )
    return 0


def _end_session(options: argparse.Namespace) -> int:
    here = session(options)
    name = here.child(options.name, "sessions")
    with here.admin() as admin:
        show(options, admin.end_session(name), lambda _: f"{name} is ended")
    return 0


def _role(user: pb.User) -> str:
    return word(tenant_admin_pb2.Role, user.role, "ROLE_")


__all__ = ["ROLES", "register"]
