"""The engine contract over gRPC: ``serve_engine`` beside the engine, ``GrpcEngineClient`` beside the gateway."""

from lorry.engine.transport_client import GrpcEngineClient
from lorry.engine.transport_server import EngineServer, serve_engine

__all__ = ["EngineServer", "GrpcEngineClient", "serve_engine"]
