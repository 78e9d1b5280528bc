"""OpenAI's API over HTTP, on the same service layer as gRPC: ``/v1/models``, ``/v1/chat/completions``,
``/v1/completions``. It translates and decides nothing."""

from lorry.gateway.http.server import HttpServer

__all__ = ["HttpServer"]
