"""The engine: step loop, runner, device storage, transports. Only the torch-free contract is exported here."""

from lorry.engine.contract import (
    ChoiceEnd,
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
    "ChoiceEnd",
    "EngineClient",
    "EngineEvent",
    "EngineInfo",
    "EngineRequest",
    "Finished",
    "Provenance",
    "Started",
    "Tokens",
]
