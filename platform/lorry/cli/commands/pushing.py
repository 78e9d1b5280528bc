"""``lorry adapters push``: a folder, or a folder of a bucket, as an adapter's next version."""

from __future__ import annotations

import argparse
from pathlib import Path

from lorry.cli.adapter_views import show_version, state_of
from lorry.cli.commands.parsing import Commands, remote
from lorry.cli.output import printable, say
from lorry.cli.push_progress import follow
from lorry.cli.session import Session, session
from lorry.errors import AlreadyExists, InvalidRequest, LorryError


def register(actions: Commands) -> None:
    push = remote(actions, "push", "a folder as an adapter's next version", _push)
    push.add_argument("name", help="pirate")
    push.add_argument("folder", help="what PEFT saved, or s3://bucket/prefix within the tenant's import prefixes")
    push.add_argument("--base", default="", metavar="MODEL", help="models/... (default: the only one that there is)")
    push.add_argument("--create", action="store_true", help="make the adapter's name where it is new")
    push.add_argument("--resume", default="", metavar="UPLOAD", help="go on with an upload that an earlier push began")
    push.add_argument("--validate-only", action="store_true", help="upload and validate, but make no version")


def _push(options: argparse.Namespace) -> int:
    here = session(options)
    name = here.name(options.name)
    base = options.base or _only_base(here)
    imported = options.folder.startswith("s3://")
    begun = ""

    def began(upload: str) -> None:
        nonlocal begun
        begun = upload

    with here.admin() as admin:
        if options.create:
            tenant, _, adapter = name.removeprefix("tenants/").partition("/adapters/")
            try:
                admin.create_adapter(tenant, adapter)
            except AlreadyExists:
                pass  # --create asks for it to be there, and it is
        try:
            if imported:
                version = admin.create_version(name, base, s3_uri=options.folder, validate_only=options.validate_only)
            else:
                with follow(quiet=options.json) as (progress, on_check):
                    version = admin.push(
                        name,
                        Path(options.folder),
                        base,
                        progress,
                        on_check,
                        upload=options.resume,
                        validate_only=options.validate_only,
                        on_upload=began,
                    )
        except (LorryError, KeyboardInterrupt) as error:
            if begun and (isinstance(error, KeyboardInterrupt) or "upload" in error.metadata):
                say(f"what was sent is kept for a day; go on with --resume {begun}")
            raise
    if options.json:
        show_version(options, version)
    else:
        what = "would be accepted" if options.validate_only else state_of(version)
        print(printable(f"{version.name or name}  {what}  rank {version.rank}  sha256 {version.sha256}"))
    return 0


def _only_base(here: Session) -> str:
    with here.client() as client:
        bases = [model.name for model in client.list_models() if model.name.startswith("models/")]
    if len(bases) != 1:
        found = ", ".join(bases) or "none"
        raise InvalidRequest.field("--base", f"on which was it trained? This key may use {found}; give one")
    return bases[0]


__all__ = ["register"]
