"""What `lorry serve` is told of things outside its home: TLS files, a registry, an object store. All of it is looked at
before anything is begun."""

from __future__ import annotations

import argparse
import os
from collections.abc import MutableMapping
from dataclasses import dataclass, field, replace
from typing import Self
from urllib.parse import urlsplit

from lorry.adapters.store import open_store
from lorry.cli.platform import Settings
from lorry.config import StoreConfig, TlsConfig
from lorry.errors import InvalidRequest
from lorry.gateway.tls import ServerTls
from lorry.registry.external import REGISTRY_VARIABLE, check_url


@dataclass(frozen=True, slots=True)
class Elsewhere:
    registry_url: str | None = field(repr=False)
    store: StoreConfig | None

    @classmethod
    def of(cls, options: argparse.Namespace, environ: MutableMapping[str, str] = os.environ) -> Self:
        """Raises InvalidRequest naming the flag. Takes the registry's URL out of ``environ``: no child needs it."""
        named = environ.pop(REGISTRY_VARIABLE, "")
        url = options.registry_url or named or None
        if url is not None:
            check_url(url, "--registry-url" if options.registry_url else REGISTRY_VARIABLE)
        store = _store(options, environ)
        if options.demo and (url or store):
            raise InvalidRequest.field("--demo", "serves what lies in its home; leave --registry-url and --store out")
        if (tls := tls_of(options)) is not None:
            ServerTls(tls)
        return cls(url, store)

    def add_to(self, settings: Settings) -> Settings:
        return replace(settings, registry_url=self.registry_url, store=self.store)


def tls_of(options: argparse.Namespace) -> TlsConfig | None:
    """None where no file is named. Raises InvalidRequest where one is missing beside another."""
    files = {"--tls-cert": options.tls_cert, "--tls-key": options.tls_key}
    if options.tls_client_ca is None and not any(files.values()):
        return None
    for flag, path in files.items():
        if path is None:
            raise InvalidRequest.field(flag, "--tls-cert and --tls-key belong together; give both")
    return TlsConfig(options.tls_cert, options.tls_key, options.tls_client_ca)


def _store(options: argparse.Namespace, environ: MutableMapping[str, str]) -> StoreConfig | None:
    if options.store is None:
        for flag, value in (("--s3-endpoint", options.s3_endpoint), ("--s3-region", options.s3_region)):
            if value is not None:
                raise InvalidRequest.field(flag, "it is of a store; give --store s3://BUCKET/PREFIX too")
        return None
    if not options.store.startswith("s3://") or "@" in urlsplit(options.store).netloc:
        raise InvalidRequest.field("--store", "write s3://BUCKET/PREFIX; credentials come from boto3's environment")
    if options.s3_endpoint is not None and urlsplit(options.s3_endpoint).scheme not in ("http", "https"):
        raise InvalidRequest.field("--s3-endpoint", "write http://HOST:PORT or https://HOST:PORT")
    region = options.s3_region or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    found = StoreConfig(options.store, options.s3_endpoint)
    if region:
        found = replace(found, region=region)
    try:
        open_store(found).close()
    except InvalidRequest as error:
        raise InvalidRequest.field("--store", error.message) from None
    return found


__all__ = ["Elsewhere", "tls_of"]
