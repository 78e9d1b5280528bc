"""``lorry login``, ``logout``, ``whoami``, ``doctor``."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from lorry.cli.asking import secret
from lorry.cli.commands.parsing import Commands, add_connection, add_json, remote
from lorry.cli.doctor import doctor
from lorry.cli.names import split_address
from lorry.cli.output import print_json, printable, say
from lorry.cli.profile import Profile, profile_path, remove_profile, save_profile
from lorry.cli.session import default_address, session, tls_of
from lorry.client import Client
from lorry.errors import InvalidRequest


def register(commands: Commands) -> None:
    login = commands.add_parser("login", help="keep address and key for the commands to come")
    login.set_defaults(run=_login)
    add_connection(login)
    login.add_argument(
        "--key",
        nargs="?",
        default=None,
        metavar="KEY",
        help="is asked for, unseen, or read from standard input; given here it stays in the shell's history",
    )
    login.add_argument("--tenant", default="", metavar="T", help="whose short names are (default: the key's)")
    login.add_argument("--no-check", action="store_true", help="do not ask the server whether the key is good")
    add_json(login)
    logout = commands.add_parser("logout", help="forget them; the key itself stays good until it is revoked")
    logout.set_defaults(run=_logout)
    add_json(logout)
    remote(commands, "whoami", "whose key is used, and with which server", _whoami)
    remote(commands, "doctor", "what is wrong between here and an answer", doctor)


def _login(options: argparse.Namespace) -> int:
    if options.key is not None:
        say("lorry: a key on the command line stays in the shell's history; better give it to the prompt")
    key = options.key or secret("API key: ")
    if not key:
        raise InvalidRequest.field("key", "none came; paste the one that lorry keys create printed")
    tls = tls_of(options)
    files = [] if tls is None else [str(path.absolute()) if path else "" for path in (tls.ca, tls.cert, tls.key)]
    profile = Profile(
        split_address(options.address)[0] or default_address(),
        key,
        options.tenant.removeprefix("tenants/"),
        tls is not None and not any(files),
        *files,
    )
    role = ""
    if not options.no_check:
        with Client(profile.address, key, tls=tls) as client:
            about = client.whoami()
        if profile.tenant and about.tenant and about.tenant != profile.tenant and about.role != "platform_admin":
            raise InvalidRequest.field("--tenant", f"the key is of tenant {about.tenant}; leave --tenant out")
        role = about.role
        profile = replace(profile, tenant=profile.tenant or about.tenant)
    path = save_profile(profile)
    if options.json:
        print_json({"profile": str(path), "address": profile.address, "tenant": profile.tenant, "role": role})
    else:
        whose = f" as {' '.join(word for word in (profile.tenant, role) if word)}" if profile.tenant or role else ""
        print(printable(f"logged in to {profile.address}{whose}; kept in {path}"))
    return 0


def _logout(options: argparse.Namespace) -> int:
    path: Path | None = remove_profile()
    if options.json:
        print_json({"profile": str(profile_path()), "removed": path is not None})
    else:
        print(f"{path} is removed" if path else "nobody was logged in")
    return 0


def _whoami(options: argparse.Namespace) -> int:
    here = session(options)
    with here.client() as client:
        about = client.whoami()
    found = {
        "address": here.address,
        "tenant": about.tenant or here.tenant,
        "principal": about.principal,
        "role": about.role,
        "serverVersion": about.server_version,
    }
    if options.json:
        print_json(found)
    else:
        for name, value in found.items():
            print(printable(f"{name + ':':<15}{value or '(the server does not say)'}"))
    return 0


__all__ = ["register"]
