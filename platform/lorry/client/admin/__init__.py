"""The admin API from Python, for asyncio and blocking::

from lorry.client.admin import SyncAdminClient

with SyncAdminClient("127.0.0.1:50061", "lorry_...") as admin:
    version = admin.push("tenants/acme/adapters/pirate", Path("pirate"), "models/smol")
    admin.set_alias("tenants/acme/adapters/pirate", "prod", version.version)
"""

from lorry.client.admin.aio import AdminClient
from lorry.client.admin.grants import PIN_MODES
from lorry.client.admin.keys import ROLES
from lorry.client.admin.push import OnCheck, OnUpload, Progress
from lorry.client.admin.records import DIMENSIONS, FORMATS
from lorry.client.admin.sync import SyncAdminClient

__all__ = [
    "DIMENSIONS",
    "FORMATS",
    "PIN_MODES",
    "ROLES",
    "AdminClient",
    "OnCheck",
    "OnUpload",
    "Progress",
    "SyncAdminClient",
]
