"""The engine: step loop, runner, device storage, transports. Only the torch-free contract is exported here."""

from lorry.engine.contract import (
    EngineClient,
    EngineEvent,
    EngineInfo,
    EngineRequest,
    Finished,
    Provenance,
    Started,
    Tokens,
)

__all__ = [
    "EngineClient",
    "EngineEvent",
    "EngineInfo",
    "EngineRequest",
    "Finished",
    "Provenance",
    "Started",
    "Tokens",
]
