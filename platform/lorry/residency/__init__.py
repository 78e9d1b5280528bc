"""Which adapter versions this engine holds, where their bytes are, and which device slot they run from. No torch."""

from lorry.residency.host import Failed, Fetching, HostState, HostTier, Ready, VersionRef
from lorry.residency.residency import AdapterState, Arrival, Placement, Residency
from lorry.residency.slots import Slot, SlotTable

__all__ = [
    "AdapterState",
    "Arrival",
    "Failed",
    "Fetching",
    "HostState",
    "HostTier",
    "Placement",
    "Ready",
    "Residency",
    "Slot",
    "SlotTable",
    "VersionRef",
]
