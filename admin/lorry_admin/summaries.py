"""An adapter with what lists tell of it, as a message."""

from __future__ import annotations

from lorry.api.v1 import adapter_admin_pb2 as pb
from lorry.registry.adapters.summaries import AdapterSummary
from lorry.registry.names import AdapterName
from lorry_admin import messages


def summary(tenant_name: str, found: AdapterSummary) -> pb.Adapter:
    """The FULL view."""
    made = messages.adapter(tenant_name, found.adapter)
    if found.newest is not None:
        made.newest_version.CopyFrom(messages.version(made.name, found.newest, full=False))
    name = AdapterName(tenant_name, found.adapter.name)
    made.aliases.extend(messages.alias(name, one) for one in found.aliases)
    made.alias_count = found.alias_count
    if found.last_use is not None:
        made.last_use_time.FromDatetime(found.last_use)
    return made


__all__ = ["summary"]
