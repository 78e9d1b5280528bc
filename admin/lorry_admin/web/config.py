"""Settings of the dashboards."""

from __future__ import annotations

from dataclasses import dataclass

from lorry.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class WebConfig:
    """``public_url``: `https://host[:port]` that browsers use, where a proxy stands before it; "" takes the request's
    own. Cookies are Secure where it is https. ``trusted_proxies``: addresses whose X-Forwarded-For is believed,
    comma-separated; "" believes none. ``grpc_address`` and ``http_url``: what "copy as" names; "" is the address that
    the app itself uses, and leaves curl out. ``grpc_tls``: that address wants TLS. ``tls``: the app's own port speaks
    it."""

    host: str = "127.0.0.1"
    port: int = 0
    public_url: str = ""
    trusted_proxies: str = ""
    grpc_address: str = ""
    grpc_tls: bool = False
    tls: bool = False
    http_url: str = ""
    page_size: int = 25
    form_bytes: int = 512 << 10
    """Longest body of a form without files."""
    upload_bytes: int = (2 << 30) + (1 << 20)
    """Longest body of a form with files; the platform's own limits hold besides."""
    kept_bytes: int = 64 << 10
    """Longest form that is kept while somebody logs in again."""
    connections: int = 512
    keep_alive_seconds: int = 15
    head_bytes: int = 32 << 10
    generate_seconds: float = 300.0
    """Longest answer in the playground."""

    def __post_init__(self) -> None:
        if self.public_url and not self.public_url.startswith(("https://", "http://")):
            raise InvalidRequest.field("public_url", f"{self.public_url!r}; give `https://host` as browsers see it")

    @property
    def secure(self) -> bool:
        """Whether browsers come by TLS."""
        return self.public_url.startswith("https://") or (self.tls and not self.public_url)


__all__ = ["WebConfig"]
