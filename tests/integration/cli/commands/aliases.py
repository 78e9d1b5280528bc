"""``lorry alias``."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from lorry.api.v1 import adapter_admin_pb2 as adapters
from lorry.api.v1 import fleet_pb2 as fleet
from tests.integration.cli.answers import ALIAS, ALIASES, PIRATE
from tests.integration.cli.commands.case import case

ROLLOUT = fleet.Rollout(
    name=f"{PIRATE}/rollouts/ro_1",
    alias=ALIAS.name,
    version=3,
    canary_version=4,
    canary_permille=50,
    state=fleet.ROLLOUT_STATE_ROLLED_BACK,
    begin_time=Timestamp(seconds=1_800_000_000),
    end_time=Timestamp(seconds=1_800_003_600),
    actor="user/u1",
)

CASES = [
    case(
        "alias set pirate@prod 3 --etag new",
        "SetAlias",
        ALIAS,
        {"parent": PIRATE, "aliasId": "prod", "version": "3", "etag": "new"},
        ["is version 3, 50/1000 to version 4", "e7"],
        (["canaryVersion"], "4"),
    ),
    case(
        "alias list pirate",
        "ListAliases",
        ALIASES["ListAliases"],
        {"parent": PIRATE, "pageSize": 1000},
        ["prod", "4 (50/1000)"],
        (["aliases", 0, "revision"], "7"),
    ),
    case(
        "alias history pirate@prod",
        "ListAliasRevisions",
        adapters.ListAliasRevisionsResponse(
            revisions=[adapters.Alias(name=ALIAS.name, deleted=True, revision=8), ALIAS]
        ),
        {"name": ALIAS.name, "pageSize": 1000},
        ["deleted", "7"],
        (["revisions", 0, "deleted"], True),
    ),
    case(
        "alias rollouts pirate@prod",
        "ListRollouts",
        fleet.ListRolloutsResponse(rollouts=[ROLLOUT]),
        {"parent": PIRATE, "aliasId": "prod", "pageSize": 1000},
        ["prod", "4 (50/1000)", "rolled_back", "2027-01-15T08:00:00Z", "user/u1"],
        (["rollouts", 0, "state"], "ROLLOUT_STATE_ROLLED_BACK"),
    ),
    case(
        "alias rollouts pirate",
        "ListRollouts",
        fleet.ListRolloutsResponse(rollouts=[ROLLOUT]),
        {"parent": PIRATE, "pageSize": 1000},
        "prod",
        (["rollouts", 0, "canaryVersion"], "4"),
    ),
    case(
        "alias canary pirate@prod 4 50",
        "SetCanary",
        ALIAS,
        {"name": ALIAS.name, "version": "4", "permille": 50},
        "50/1000",
        (["canaryPermille"], 50),
    ),
    case(
        "alias promote pirate@prod --etag e7",
        "PromoteCanary",
        ALIAS,
        {"name": ALIAS.name, "etag": "e7"},
        "revision 7",
        (["version"], "3"),
    ),
    case("alias rollback pirate@prod", "RollbackAlias", ALIAS, {"name": ALIAS.name}, "revision 7", (["version"], "3")),
    case(
        "alias delete pirate@prod",
        "DeleteAlias",
        adapters.Alias(name=ALIAS.name, deleted=True),
        {"name": ALIAS.name},
        "is deleted",
        (["deleted"], True),
    ),
]
