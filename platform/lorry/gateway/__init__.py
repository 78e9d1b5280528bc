"""gRPC gateway: authenticates, resolves, checks, tokenizes, streams, bills; and proves which weights answered."""

from lorry.gateway.counters import GatewayCounters
from lorry.gateway.ledger import Ledger, LedgerDrain
from lorry.gateway.ports import SnapshotSource, UsageRow, UsageSink
from lorry.gateway.routes import EngineRoutes
from lorry.gateway.server import ExtraService, GatewayServer, build_server
from lorry.gateway.usage import MemoryUsage, UsageSpool, read_rows

__all__ = [
    "EngineRoutes",
    "ExtraService",
    "GatewayCounters",
    "GatewayServer",
    "Ledger",
    "LedgerDrain",
    "MemoryUsage",
    "SnapshotSource",
    "UsageRow",
    "UsageSink",
    "UsageSpool",
    "build_server",
    "read_rows",
]
