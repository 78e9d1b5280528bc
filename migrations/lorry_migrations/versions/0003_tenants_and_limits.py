"""deletion, canaries, quotas, usage sums, an audit chain, replicas

Revision ID: 0003
Revises: 0002

THE RULE: the previous release runs against the schema that this migration leaves, and this release runs
against the one that it finds, for as long as a deployment rolls. So: add before use, stop using before
removal (one release between), no rename, no NOT NULL without a server default on a table with rows, no
rewrite of a large table, every CHECK and index named. SQLite needs op.batch_alter_table for changes,
which rebuilds the table: create its immutability triggers again.

Columns are added in place, so the triggers stay; alias_revision and pin get constraints, and audit_event room for the
longest name of an alias, which rebuilds them on SQLite.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

TABLES = (
    "rollout",
    "quota",
    "quota_period",
    "quota_lease",
    "usage_rollup",
    "key_use",
    "audit_head",
    "replica_state",
    "residency",
)
TRIGGERS = (
    ("alias_revision", "UPDATE", "tr_alias_revision_update_6"),
    ("alias_revision", "DELETE", "tr_alias_revision_delete_7"),
    ("audit_event", "UPDATE", "tr_audit_event_update_10"),
    ("audit_event", "DELETE", "tr_audit_event_delete_11"),
)
"""Of 0001, which SQLite loses with the table."""
SOURCE = "tr_adapter_version_update_source"


def columns() -> dict[str, tuple[sa.Column[Any], ...]]:
    return {
        "tenant": (
            sa.Column("revision", sa.Integer(), server_default="1", nullable=False),
            sa.Column("import_prefixes", sa.JSON(), nullable=True),
        ),
        "adapter": (
            sa.Column("revision", sa.Integer(), server_default="1", nullable=False),
            sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
            sa.Column("purge_at", sa.DateTime(timezone=True), nullable=True),
            sa.Column("purged_at", sa.DateTime(timezone=True), nullable=True),
            sa.Column("purge_receipt", sa.JSON(), nullable=True),
        ),
        "adapter_version": (
            sa.Column("source_uri", sa.String(length=1024), nullable=True),
            sa.Column("deprecated_at", sa.DateTime(timezone=True), nullable=True),
            sa.Column("purged_at", sa.DateTime(timezone=True), nullable=True),
        ),
        "audit_event": (
            sa.Column("sequence", sa.BigInteger(), nullable=True),
            sa.Column("hash", sa.String(length=64), nullable=True),
        ),
        "usage_event": (
            sa.Column("principal", sa.String(length=63), nullable=True),
            sa.Column("alias", sa.String(length=63), nullable=True),
            sa.Column("canary", sa.Boolean(), nullable=True),
            sa.Column("labels", sa.JSON(), nullable=True),
            sa.Column("replica", sa.String(length=64), nullable=True),
            sa.Column("queue_s", sa.Float(), nullable=True),
            sa.Column("ttft_s", sa.Float(), nullable=True),
            sa.Column("decode_s", sa.Float(), nullable=True),
        ),
    }


def upgrade() -> None:
    for table, added in columns().items():
        for column in added:
            op.add_column(table, column)
    with op.batch_alter_table("audit_event") as batch:
        batch.alter_column("subject", existing_type=sa.String(length=200), type_=sa.String(length=256))
    op.create_index("uq_audit_event_sequence", "audit_event", ["tenant_id", "sequence"], unique=True)
    with op.batch_alter_table("alias_revision") as batch:
        batch.add_column(sa.Column("canary_number", sa.Integer(), nullable=True))
        batch.add_column(sa.Column("canary_permille", sa.Integer(), server_default="0", nullable=False))
        batch.add_column(sa.Column("deleted", sa.Boolean(), server_default=sa.false(), nullable=False))
        batch.add_column(sa.Column("origin", sa.Integer(), nullable=True))
        batch.create_foreign_key(
            op.f("fk_alias_revision_adapter_id_name_origin_alias_revision"),
            "alias_revision",
            ["adapter_id", "name", "origin"],
            ["adapter_id", "name", "revision"],
        )
        batch.create_check_constraint(op.f("ck_alias_revision_origin_before"), "origin < revision")
        batch.create_foreign_key(
            op.f("fk_alias_revision_adapter_id_canary_number_adapter_version"),
            "adapter_version",
            ["adapter_id", "canary_number"],
            ["adapter_id", "number"],
        )
        batch.create_check_constraint(
            op.f("ck_alias_revision_canary"),
            "(canary_number IS NULL AND canary_permille = 0) OR (canary_number IS NOT NULL AND canary_number <> number "
            "AND canary_permille > 0 AND canary_permille < 1000)",
        )
    with op.batch_alter_table("pin") as batch:
        batch.add_column(sa.Column("mode", sa.String(length=8), server_default="HARD", nullable=False))
        batch.create_check_constraint(op.f("ck_pin_mode"), "mode IN ('HARD', 'DEFAULT')")
    create_tables()
    create_triggers()


def create_triggers() -> None:
    if op.get_context().dialect.name == "postgresql":
        op.execute(
            f"CREATE TRIGGER {SOURCE} BEFORE UPDATE ON adapter_version FOR EACH ROW "
            "WHEN (NEW.source_uri IS DISTINCT FROM OLD.source_uri OR "
            "(OLD.purged_at IS NOT NULL AND NEW.purged_at IS DISTINCT FROM OLD.purged_at)) "
            "EXECUTE FUNCTION lorry_immutable()"
        )
        return
    op.execute(
        f"CREATE TRIGGER {SOURCE} BEFORE UPDATE ON adapter_version "
        "WHEN NEW.source_uri IS NOT OLD.source_uri OR "
        "(OLD.purged_at IS NOT NULL AND NEW.purged_at IS NOT OLD.purged_at) "
        "BEGIN SELECT RAISE(ABORT, 'adapter_version is immutable'); END"
    )
    restore_triggers()


def restore_triggers() -> None:
    for table, action, name in TRIGGERS:
        op.execute(
            f"CREATE TRIGGER {name} BEFORE {action} ON {table} BEGIN SELECT RAISE(ABORT, '{table} is immutable'); END"
        )


def create_tables() -> None:
    op.create_table(
        "rollout",
        sa.Column("id", sa.String(length=48), nullable=False),
        sa.Column("adapter_id", sa.String(length=48), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("canary_number", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_by", sa.String(length=48), nullable=False),
        sa.CheckConstraint("(ended_at IS NULL) = (state = 'RUNNING')", name=op.f("ck_rollout_ended")),
        sa.CheckConstraint(
            "state IN ('RUNNING', 'PROMOTED', 'ROLLED_BACK', 'REPLACED')", name=op.f("ck_rollout_state")
        ),
        sa.ForeignKeyConstraint(
            ["adapter_id", "name"], ["alias.adapter_id", "alias.name"], name=op.f("fk_rollout_adapter_id_name_alias")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rollout")),
    )
    op.create_index(
        "uq_rollout_running",
        "rollout",
        ["adapter_id", "name"],
        unique=True,
        sqlite_where=sa.text("ended_at IS NULL"),
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_table(
        "quota",
        sa.Column("id", sa.String(length=48), nullable=False),
        sa.Column("tenant_id", sa.String(length=48), nullable=False),
        sa.Column("adapter_id", sa.String(length=48), nullable=True),
        sa.Column("requests_per_minute", sa.Integer(), nullable=True),
        sa.Column("concurrency", sa.Integer(), nullable=True),
        sa.Column("queue_length", sa.Integer(), nullable=True),
        sa.Column("tokens_per_month", sa.BigInteger(), nullable=True),
        sa.Column("max_tokens_cap", sa.Integer(), nullable=True),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=48), nullable=False),
        sa.CheckConstraint(
            "requests_per_minute > 0 AND concurrency > 0 AND queue_length >= 0 AND tokens_per_month >= 0 "
            "AND max_tokens_cap > 0",
            name=op.f("ck_quota_limits"),
        ),
        sa.ForeignKeyConstraint(["adapter_id"], ["adapter.id"], name=op.f("fk_quota_adapter_id_adapter")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_quota_tenant_id_tenant")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_quota")),
        sa.UniqueConstraint("tenant_id", "adapter_id", name=op.f("uq_quota_tenant_id_adapter_id")),
    )
    op.create_index(
        "uq_quota_tenant",
        "quota",
        ["tenant_id"],
        unique=True,
        sqlite_where=sa.text("adapter_id IS NULL"),
        postgresql_where=sa.text("adapter_id IS NULL"),
    )
    op.create_table(
        "quota_period",
        sa.Column("quota_id", sa.String(length=48), nullable=False),
        sa.Column("period", sa.String(length=7), nullable=False),
        sa.Column("spent", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("spent >= 0", name=op.f("ck_quota_period_spent")),
        sa.ForeignKeyConstraint(["quota_id"], ["quota.id"], name=op.f("fk_quota_period_quota_id_quota")),
        sa.PrimaryKeyConstraint("quota_id", "period", name=op.f("pk_quota_period")),
    )
    op.create_table(
        "quota_lease",
        sa.Column("id", sa.String(length=48), nullable=False),
        sa.Column("quota_id", sa.String(length=48), nullable=False),
        sa.Column("period", sa.String(length=7), nullable=False),
        sa.Column("holder", sa.String(length=64), nullable=False),
        sa.Column("granted", sa.BigInteger(), nullable=False),
        sa.Column("spent", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("granted >= 0 AND spent >= 0", name=op.f("ck_quota_lease_tokens")),
        sa.ForeignKeyConstraint(["quota_id"], ["quota.id"], name=op.f("fk_quota_lease_quota_id_quota")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_quota_lease")),
    )
    op.create_index("ix_quota_lease_quota_id_period", "quota_lease", ["quota_id", "period"], unique=False)
    op.create_table(
        "usage_rollup",
        sa.Column("tenant_id", sa.String(length=48), nullable=False),
        sa.Column("hour", sa.DateTime(timezone=True), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("key_id", sa.String(length=48), nullable=False),
        sa.Column("outcome", sa.String(length=40), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("ttft", sa.JSON(), nullable=False),
        sa.Column("inter_token", sa.JSON(), nullable=False),
        sa.Column("duration", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_usage_rollup_tenant_id_tenant")),
        sa.PrimaryKeyConstraint(
            "tenant_id", "hour", "model", "version", "key_id", "outcome", name=op.f("pk_usage_rollup")
        ),
    )
    op.create_table(
        "key_use",
        sa.Column("key_id", sa.String(length=48), nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["api_key.id"], name=op.f("fk_key_use_key_id_api_key")),
        sa.PrimaryKeyConstraint("key_id", name=op.f("pk_key_use")),
    )
    op.create_table(
        "audit_head",
        sa.Column("tenant_id", sa.String(length=48), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_audit_head_tenant_id_tenant")),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("pk_audit_head")),
    )
    op.create_table(
        "replica_state",
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("state", sa.String(length=8), nullable=False),
        sa.Column("address", sa.String(length=200), nullable=False),
        sa.Column("build", sa.String(length=80), nullable=False),
        sa.Column("base_sha256", sa.String(length=64), nullable=False),
        sa.Column("registry_epoch", sa.BigInteger(), nullable=False),
        sa.Column("running", sa.Integer(), nullable=False),
        sa.Column("drain", sa.Boolean(), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("kind IN ('gateway', 'engine')", name=op.f("ck_replica_state_kind")),
        sa.CheckConstraint("state IN ('SERVING', 'DRAINING', 'DOWN')", name=op.f("ck_replica_state_state")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_replica_state")),
    )
    op.create_table(
        "residency",
        sa.Column("replica", sa.String(length=63), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("device", sa.Boolean(), nullable=False),
        sa.Column("host", sa.Boolean(), nullable=False),
        sa.Column("disk", sa.Boolean(), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["replica"], ["replica_state.name"], name=op.f("fk_residency_replica_replica_state")),
        sa.PrimaryKeyConstraint("replica", "sha256", name=op.f("pk_residency")),
    )


def downgrade() -> None:
    postgresql = op.get_context().dialect.name == "postgresql"
    op.execute(f"DROP TRIGGER {SOURCE}{' ON adapter_version' if postgresql else ''}")
    for table in reversed(TABLES):
        op.drop_table(table)
    with op.batch_alter_table("pin") as batch:
        batch.drop_constraint(op.f("ck_pin_mode"), type_="check")
        batch.drop_column("mode")
    with op.batch_alter_table("alias_revision") as batch:
        batch.drop_constraint(op.f("ck_alias_revision_canary"), type_="check")
        batch.drop_constraint(op.f("fk_alias_revision_adapter_id_canary_number_adapter_version"), type_="foreignkey")
        batch.drop_constraint(op.f("ck_alias_revision_origin_before"), type_="check")
        batch.drop_constraint(op.f("fk_alias_revision_adapter_id_name_origin_alias_revision"), type_="foreignkey")
        batch.drop_column("origin")
        batch.drop_column("deleted")
        batch.drop_column("canary_permille")
        batch.drop_column("canary_number")
    op.drop_index("uq_audit_event_sequence", "audit_event")
    with op.batch_alter_table("audit_event") as batch:
        batch.alter_column(
            "subject",
            existing_type=sa.String(length=256),
            type_=sa.String(length=200),
            postgresql_using="substr(subject, 1, 200)",
        )
    if not postgresql:
        restore_triggers()
    for table, added in columns().items():
        for column in reversed(added):
            op.drop_column(table, column.name)
