"""``lorry replicas``."""

from __future__ import annotations

from lorry.api.v1 import fleet_pb2 as fleet
from tests.integration.cli.answers import REPLICA
from tests.integration.cli.commands.case import case

CASES = [
    case(
        "replicas list",
        "ListReplicas",
        fleet.ListReplicasResponse(replicas=[REPLICA]),
        {"pageSize": 1000},
        ["gateway", "draining", "10.0.0.1:50061"],
        (["replicas", 0, "running"], 3),
    ),
    case(
        "replicas drain r0",
        "DrainReplica",
        REPLICA,
        {"name": "replicas/r0"},
        "draining",
        (["state"], "REPLICA_STATE_DRAINING"),
    ),
    case(
        "replicas undrain replicas/r0",
        "UndrainReplica",
        REPLICA,
        {"name": "replicas/r0"},
        "takes requests",
        (["name"], "replicas/r0"),
    ),
]
