"""Where ``lorry login`` keeps what it was told: one small TOML file that only its owner can read."""

from __future__ import annotations

import json
import os
import stat
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path

from lorry.client import Tls
from lorry.errors import FailedPrecondition


@dataclass(frozen=True, slots=True)
class Profile:
    """``tls`` without files: the authorities that the system trusts."""

    address: str
    api_key: str = field(repr=False)
    tenant: str = ""
    tls: bool = False
    ca: str = ""
    cert: str = ""
    cert_key: str = ""

    def transport(self) -> Tls | None:
        if not (self.tls or self.ca or self.cert):
            return None
        return Tls(_path(self.ca), _path(self.cert), _path(self.cert_key))


def profile_path() -> Path:
    """``LORRY_PROFILE``, else ``$XDG_CONFIG_HOME/lorry/profile.toml``, ``~/.config`` by default."""
    if named := os.environ.get("LORRY_PROFILE"):
        return Path(named)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "lorry" / "profile.toml"


def load_profile() -> Profile | None:
    """None where there is none. Raises FailedPrecondition for one that others can read, or that is no profile."""
    path = profile_path()
    try:
        with path.open("rb") as handle:
            mode = stat.S_IMODE(os.fstat(handle.fileno()).st_mode)
            if mode & 0o077:
                raise FailedPrecondition(
                    f"profile: {path} has mode {mode:03o}, and holds a key; run chmod 600 on it, and rotate the key if"
                    " others were here"
                )
            found = tomllib.load(handle)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise FailedPrecondition(f"profile: {path} cannot be read ({error}); run lorry login again") from None
    kinds = {one.name: bool if one.name == "tls" else str for one in fields(Profile)}
    wrong = [name for name, value in found.items() if name not in kinds or type(value) is not kinds[name]]
    if wrong or not {"address", "api_key"} <= set(found):
        raise FailedPrecondition(f"profile: {path} is not one of this version's; run lorry login again")
    return Profile(**found)


def save_profile(profile: Profile) -> Path:
    """Replaces the file in one step; it is 0600 from its first byte on."""
    path = profile_path()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    lines = [f"{one.name} = {_toml(value)}\n" for one in fields(profile) if (value := getattr(profile, one.name))]
    scratch.unlink(missing_ok=True)
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
            handle.writelines(lines)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    return path


def remove_profile() -> Path | None:
    """The file that was removed; None where there was none."""
    path = profile_path()
    try:
        path.unlink()
    except FileNotFoundError:
        return None
    return path


def _toml(value: str | bool) -> str:
    """JSON's strings are TOML's, but for DEL, which TOML wants escaped, and surrogates, which it knows not."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _path(text: str) -> Path | None:
    return Path(text) if text else None


__all__ = ["Profile", "load_profile", "profile_path", "remove_profile", "save_profile"]
