"""The admin API's gRPC services. ``add_admin_services`` puts them on a server."""

from lorry_admin.engines import EngineReplicas
from lorry_admin.server import ADMIN_SERVICES, add_admin_services

__all__ = ["ADMIN_SERVICES", "EngineReplicas", "add_admin_services"]
