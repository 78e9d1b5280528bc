"""What a PEM file holds, and until when its certificates hold. No grpc, and no package beside Python's own."""

from __future__ import annotations

import base64
import binascii
import calendar
import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----")
_PRIVATE_KEY = re.compile(rb"-----BEGIN ([A-Z0-9]+ )*PRIVATE KEY-----")
_ENCRYPTED = re.compile(rb"-----BEGIN ENCRYPTED PRIVATE KEY-----|Proc-Type: 4,ENCRYPTED")
_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18


@dataclass(frozen=True, slots=True)
class Validity:
    """Seconds since the epoch."""

    not_before: float
    not_after: float

    def complaint(self, now: float | None = None) -> str:
        """Why a certificate does not hold now; "" where it does."""
        now = time.time() if now is None else now
        if now > self.not_after:
            return f"has expired ({day(self.not_after)})"
        return f"holds only from {day(self.not_before)}" if now < self.not_before else ""


def day(moment: float) -> str:
    """As people write it."""
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M} UTC"


def certificates(pem: bytes) -> list[Validity]:
    """Of each certificate in the file, in its order. Raises ValueError where one cannot be read."""
    try:
        return [_validity(base64.b64decode(body, validate=False)) for body in _CERTIFICATE.findall(pem)]
    except (binascii.Error, IndexError, OverflowError) as error:
        raise ValueError(str(error)) from None


def blocks(pem: bytes) -> str:
    """The certificates alone, without what people write between them."""
    return "\n".join(match[0].decode("ascii") for match in _CERTIFICATE.finditer(pem)) + "\n"


def holds_private_key(pem: bytes) -> bool:
    return _PRIVATE_KEY.search(pem) is not None


def is_encrypted(pem: bytes) -> bool:
    """Its private key needs a passphrase."""
    return _ENCRYPTED.search(pem) is not None


def _validity(der: bytes) -> Validity:
    """RFC 5280: Certificate { TBSCertificate { [version], serial, signature, issuer, validity, ... } ... }."""
    _, body, _ = _element(der, 0)
    _, signed, _ = _element(body, 0)
    at = 0
    if signed[0] == _VERSION:
        at = _element(signed, at)[2]
    for _ in range(3):
        at = _element(signed, at)[2]
    tag, both, _ = _element(signed, at)
    if tag != _SEQUENCE:
        raise ValueError("it is not an X.509 certificate")
    first, before, at = _element(both, 0)
    second, after, _ = _element(both, at)
    return Validity(_moment(first, before), _moment(second, after))


def _element(data: bytes, at: int) -> tuple[int, bytes, int]:
    """Tag, content and where the next one begins, of the DER element at ``at``."""
    tag, length, at = data[at], data[at + 1], at + 2
    if length >= 0x80:
        octets = length & 0x7F
        length, at = int.from_bytes(data[at : at + octets], "big"), at + octets
    if at + length > len(data):
        raise ValueError("it is cut off")
    return tag, data[at : at + length], at + length


def _moment(tag: int, text: bytes) -> float:
    if tag == _UTC_TIME:
        year = int(text[:2])
        text = str(year + (1900 if year >= 50 else 2000)).encode() + text[2:]
    elif tag != _GENERALIZED_TIME:
        raise ValueError("it is not an X.509 certificate")
    return float(calendar.timegm(time.strptime(text.decode("ascii"), "%Y%m%d%H%M%SZ")))


__all__ = ["Validity", "blocks", "certificates", "day", "holds_private_key", "is_encrypted"]
