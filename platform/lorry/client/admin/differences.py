"""Two versions side by side, by what the registry knows of them: settings, the values that validation found (of ranks,
targets, kinds and coverage), and every file by its digest. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lorry.api.v1 import adapter_admin_pb2 as pb


@dataclass(frozen=True, slots=True)
class Difference:
    """``kind``: ``field``, ``check`` or ``file``. "" on one side: it is not there."""

    kind: str
    name: str
    a: str
    b: str


def differences(a: pb.AdapterVersion, b: pb.AdapterVersion) -> list[Difference]:
    """Empty where nothing but number and time differs."""
    return [
        *_compared("field", _fields(a), _fields(b)),
        *_compared("check", _checks(a), _checks(b)),
        *_compared("file", _files(a), _files(b)),
    ]


def state_word(version: pb.AdapterVersion) -> str:
    """As `ready`; `unspecified` for what ``validate_only`` answers."""
    return pb.AdapterVersionState.Name(version.state).removeprefix("ADAPTER_VERSION_STATE_").lower()


def _compared(kind: str, a: Mapping[str, str], b: Mapping[str, str]) -> list[Difference]:
    names = [*a, *(name for name in b if name not in a)]
    pairs = [(name, a.get(name, ""), b.get(name, "")) for name in names]
    return [Difference(kind, name, left, right) for name, left, right in pairs if left != right]


def _fields(version: pb.AdapterVersion) -> dict[str, str]:
    return {
        "state": state_word(version),
        "sha256": version.sha256,
        "base": version.base,
        "base_sha256": version.base_sha256,
        "rank": str(version.rank),
        "size_bytes": str(version.size_bytes),
        "tokenizer_sha256": version.tokenizer_sha256,
        "vocabulary": str(version.vocabulary),
        "end_token_ids": " ".join(map(str, version.end_token_ids)),
        "source_uri": version.source_uri,
    }


def _checks(version: pb.AdapterVersion) -> dict[str, str]:
    """What was found, by check; a check may have several rows."""
    found: dict[str, str] = {}
    for check in version.checks:
        value = check.value or check.message
        text = value if check.outcome == "pass" else f"{check.outcome}: {value}"
        found[check.id] = f"{found[check.id]}; {text}" if check.id in found else text
    return found


def _files(version: pb.AdapterVersion) -> dict[str, str]:
    return {file.path: f"{file.size} bytes {file.sha256}" for file in version.files}


__all__ = ["Difference", "differences", "state_word"]
