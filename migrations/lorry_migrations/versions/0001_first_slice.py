"""the first slice

Revision ID: 0001
Revises:

THE RULE: the previous release runs against the schema that this migration leaves, and this release runs
against the one that it finds, for as long as a deployment rolls. So: add before use, stop using before
removal (one release between), no rename, no NOT NULL without a server default on a table with rows, no
rewrite of a large table, every CHECK and index named. SQLite needs op.batch_alter_table for changes,
which rebuilds the table: create its immutability triggers again.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


CONTENT = (
    "id",
    "adapter_id",
    "number",
    "base_model_id",
    "sha256",
    "prefix",
    "rank",
    "size_bytes",
    "report",
    "created_at",
    "created_by",
)
"""Columns of adapter_version that never change. JSON has no equality on PostgreSQL, hence the cast to text."""

APPEND_ONLY = ("adapter_file", "alias_revision", "usage_event", "audit_event")


def upgrade() -> None:
    create_tables()
    op.execute("INSERT INTO registry_epoch (id, epoch) VALUES (1, 0)")
    if op.get_context().dialect.name == "postgresql":
        create_postgresql_triggers()
    else:
        create_sqlite_triggers()


def create_sqlite_triggers() -> None:
    changed = " OR ".join(f"NEW.{column} IS NOT OLD.{column}" for column in CONTENT)
    guards = [
        ("adapter_version", "UPDATE", f"WHEN {changed}"),
        ("adapter_version", "UPDATE", "WHEN OLD.state = 'REJECTED' AND NEW.state <> 'REJECTED'"),
        ("adapter_version", "DELETE", ""),
        ("change_log", "UPDATE", ""),
        *((table, action, "") for table in APPEND_ONLY for action in ("UPDATE", "DELETE")),
    ]
    for index, (table, action, condition) in enumerate(guards):
        op.execute(
            f"CREATE TRIGGER tr_{table}_{action.lower()}_{index} BEFORE {action} ON {table} {condition} "
            f"BEGIN SELECT RAISE(ABORT, '{table} is immutable'); END"
        )


def create_postgresql_triggers() -> None:
    op.execute(
        "CREATE FUNCTION lorry_immutable() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION '% is immutable', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation'; "
        "END $$"
    )
    changed = " OR ".join(f"NEW.{column}::text IS DISTINCT FROM OLD.{column}::text" for column in CONTENT)
    guards = [
        ("adapter_version", "UPDATE", f"WHEN ({changed})"),
        ("adapter_version", "UPDATE", "WHEN (OLD.state = 'REJECTED' AND NEW.state <> 'REJECTED')"),
        ("adapter_version", "DELETE", ""),
        ("change_log", "UPDATE", ""),
        *((table, action, "") for table in APPEND_ONLY for action in ("UPDATE", "DELETE")),
    ]
    for index, (table, action, condition) in enumerate(guards):
        op.execute(
            f"CREATE TRIGGER tr_{table}_{action.lower()}_{index} BEFORE {action} ON {table} FOR EACH ROW {condition} "
            "EXECUTE FUNCTION lorry_immutable()"
        )


def create_tables() -> None:
    op.create_table(
        "base_model",
        sa.Column("id", sa.String(length=48), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("base_sha256", sa.String(length=64), nullable=False),
        sa.Column("tokenizer_sha256", sa.String(length=64), nullable=False),
        sa.Column("context_tokens", sa.Integer(), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("context_tokens > 0", name=op.f("ck_base_model_context_positive")),
        sa.CheckConstraint(
            "length(base_sha256) = 64 AND length(tokenizer_sha256) = 64", name=op.f("ck_base_model_digest_length")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_base_model")),
        sa.UniqueConstraint("name", name=op.f("uq_base_model_name")),
    )
    op.create_table(
        "change_log",
        sa.Column("epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("ordinal", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("subject", sa.String(length=120), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("epoch", "ordinal", name=op.f("pk_change_log")),
    )
    op.create_table(
        "registry_epoch",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_registry_epoch_single_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_registry_epoch")),
    )
    op.create_table(
        "tenant",
        sa.Column("id", sa.String(length=48), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("display_name", sa.String(length=200), nullable=False),
        sa.Column("suspended", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tenant")),
        sa.UniqueConstraint("name", name=op.f("uq_tenant_name")),
    )
    op.create_table(
        "adapter",
        sa.Column("id", sa.String(length=48), nullable=False),
        sa.Column("tenant_id", sa.String(length=48), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("display_name", sa.String(length=200), nullable=False),
        sa.Column("last_version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("last_version >= 0", name=op.f("ck_adapter_last_version")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_adapter_tenant_id_tenant")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_adapter")),
        sa.UniqueConstraint("tenant_id", "name", name=op.f("uq_adapter_tenant_id_name")),
    )
    op.create_table(
        "audit_event",
        sa.Column("id", sa.String(length=48), nullable=False),
        sa.Column("tenant_id", sa.String(length=48), nullable=False),
        sa.Column("actor_key_id", sa.String(length=48), nullable=False),
        sa.Column("action", sa.String(length=60), nullable=False),
        sa.Column("subject", sa.String(length=200), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_audit_event_tenant_id_tenant")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_event")),
    )
    op.create_index("ix_audit_event_tenant_id_created_at", "audit_event", ["tenant_id", "created_at"], unique=False)

    op.create_table(
        "idempotency",
        sa.Column("tenant_id", sa.String(length=48), nullable=False),
        sa.Column("method", sa.String(length=60), nullable=False),
        sa.Column("request_id", sa.String(length=128), nullable=False),
        sa.Column("request_sha256", sa.String(length=64), nullable=False),
        sa.Column("subject", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_idempotency_tenant_id_tenant")),
        sa.PrimaryKeyConstraint("tenant_id", "method", "request_id", name=op.f("pk_idempotency")),
    )
    op.create_table(
        "principal",
        sa.Column("id", sa.String(length=48), nullable=False),
        sa.Column("tenant_id", sa.String(length=48), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("role", sa.String(length=20), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("role IN ('platform_admin', 'owner', 'member')", name=op.f("ck_principal_role")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_principal_tenant_id_tenant")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_principal")),
        sa.UniqueConstraint("tenant_id", "name", name=op.f("uq_principal_tenant_id_name")),
    )
    op.create_table(
        "usage_event",
        sa.Column("ledger_id", sa.String(length=48), nullable=False),
        sa.Column("tenant_id", sa.String(length=48), nullable=False),
        sa.Column("key_id", sa.String(length=48), nullable=False),
        sa.Column("request_id", sa.String(length=128), nullable=False),
        sa.Column("adapter_sha256", sa.String(length=64), nullable=False),
        sa.Column("base_sha256", sa.String(length=64), nullable=False),
        sa.Column("adapter", sa.String(length=200), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("output_tokens", sa.Integer(), nullable=False),
        sa.Column("cached_prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("outcome", sa.String(length=40), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "prompt_tokens >= 0 AND output_tokens >= 0 AND cached_prompt_tokens >= 0",
            name=op.f("ck_usage_event_tokens"),
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_usage_event_tenant_id_tenant")),
        sa.PrimaryKeyConstraint("ledger_id", name=op.f("pk_usage_event")),
    )
    op.create_index("ix_usage_event_tenant_id_ended_at", "usage_event", ["tenant_id", "ended_at"], unique=False)

    op.create_table(
        "adapter_version",
        sa.Column("id", sa.String(length=48), nullable=False),
        sa.Column("adapter_id", sa.String(length=48), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("base_model_id", sa.String(length=48), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("prefix", sa.String(length=200), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("report", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=48), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("state_reason", sa.Text(), nullable=False),
        sa.CheckConstraint("state IN ('READY', 'REJECTED', 'QUARANTINED')", name=op.f("ck_adapter_version_state")),
        sa.CheckConstraint("length(sha256) = 64", name=op.f("ck_adapter_version_digest_length")),
        sa.CheckConstraint("number > 0", name=op.f("ck_adapter_version_number_positive")),
        sa.ForeignKeyConstraint(["adapter_id"], ["adapter.id"], name=op.f("fk_adapter_version_adapter_id_adapter")),
        sa.ForeignKeyConstraint(
            ["base_model_id"], ["base_model.id"], name=op.f("fk_adapter_version_base_model_id_base_model")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_adapter_version")),
        sa.UniqueConstraint("adapter_id", "number", name=op.f("uq_adapter_version_adapter_id_number")),
    )
    op.create_index("ix_adapter_version_base_model_id", "adapter_version", ["base_model_id"], unique=False)
    op.create_index("ix_adapter_version_sha256", "adapter_version", ["sha256"], unique=False)

    op.create_table(
        "alias",
        sa.Column("adapter_id", sa.String(length=48), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["adapter_id"], ["adapter.id"], name=op.f("fk_alias_adapter_id_adapter")),
        sa.PrimaryKeyConstraint("adapter_id", "name", name=op.f("pk_alias")),
    )
    op.create_table(
        "api_key",
        sa.Column("id", sa.String(length=48), nullable=False),
        sa.Column("tenant_id", sa.String(length=48), nullable=False),
        sa.Column("principal_id", sa.String(length=48), nullable=False),
        sa.Column("mac", sa.String(length=64), nullable=False),
        sa.Column("pepper_id", sa.String(length=16), nullable=False),
        sa.Column("last_four", sa.String(length=4), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("length(mac) = 64", name=op.f("ck_api_key_mac_length")),
        sa.ForeignKeyConstraint(["principal_id"], ["principal.id"], name=op.f("fk_api_key_principal_id_principal")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_api_key_tenant_id_tenant")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_key")),
    )
    op.create_index("ix_api_key_principal_id", "api_key", ["principal_id"], unique=False)
    op.create_index("ix_api_key_tenant_id", "api_key", ["tenant_id"], unique=False)

    op.create_table(
        "grant",
        sa.Column("id", sa.String(length=48), nullable=False),
        sa.Column("tenant_id", sa.String(length=48), nullable=False),
        sa.Column("adapter_id", sa.String(length=48), nullable=True),
        sa.Column("base_model_id", sa.String(length=48), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=48), nullable=False),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("(adapter_id IS NULL) <> (base_model_id IS NULL)", name=op.f("ck_grant_one_resource")),
        sa.ForeignKeyConstraint(["adapter_id"], ["adapter.id"], name=op.f("fk_grant_adapter_id_adapter")),
        sa.ForeignKeyConstraint(["base_model_id"], ["base_model.id"], name=op.f("fk_grant_base_model_id_base_model")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_grant_tenant_id_tenant")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_grant")),
    )
    op.create_index(
        "ix_grant_tenant_id_adapter_id_base_model_id",
        "grant",
        ["tenant_id", "adapter_id", "base_model_id"],
        unique=False,
    )
    op.create_index(
        "uq_grant_active_adapter",
        "grant",
        ["tenant_id", "adapter_id"],
        unique=True,
        sqlite_where=sa.text("revoked_at IS NULL AND adapter_id IS NOT NULL"),
        postgresql_where=sa.text("revoked_at IS NULL AND adapter_id IS NOT NULL"),
    )
    op.create_index(
        "uq_grant_active_base",
        "grant",
        ["tenant_id", "base_model_id"],
        unique=True,
        sqlite_where=sa.text("revoked_at IS NULL AND base_model_id IS NOT NULL"),
        postgresql_where=sa.text("revoked_at IS NULL AND base_model_id IS NOT NULL"),
    )

    op.create_table(
        "adapter_file",
        sa.Column("version_id", sa.String(length=48), nullable=False),
        sa.Column("path", sa.String(length=128), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.CheckConstraint("length(sha256) = 64", name=op.f("ck_adapter_file_digest_length")),
        sa.CheckConstraint("size_bytes >= 0", name=op.f("ck_adapter_file_size")),
        sa.ForeignKeyConstraint(
            ["version_id"], ["adapter_version.id"], name=op.f("fk_adapter_file_version_id_adapter_version")
        ),
        sa.PrimaryKeyConstraint("version_id", "path", name=op.f("pk_adapter_file")),
    )
    op.create_table(
        "alias_revision",
        sa.Column("adapter_id", sa.String(length=48), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=48), nullable=False),
        sa.CheckConstraint("revision > 0", name=op.f("ck_alias_revision_revision_positive")),
        sa.ForeignKeyConstraint(
            ["adapter_id", "name"],
            ["alias.adapter_id", "alias.name"],
            name=op.f("fk_alias_revision_adapter_id_name_alias"),
        ),
        sa.ForeignKeyConstraint(
            ["adapter_id", "number"],
            ["adapter_version.adapter_id", "adapter_version.number"],
            name=op.f("fk_alias_revision_adapter_id_number_adapter_version"),
        ),
        sa.PrimaryKeyConstraint("adapter_id", "name", "revision", name=op.f("pk_alias_revision")),
    )
    op.create_table(
        "pin",
        sa.Column("tenant_id", sa.String(length=48), nullable=False),
        sa.Column("adapter_id", sa.String(length=48), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=48), nullable=False),
        sa.ForeignKeyConstraint(
            ["adapter_id", "number"],
            ["adapter_version.adapter_id", "adapter_version.number"],
            name=op.f("fk_pin_adapter_id_number_adapter_version"),
        ),
        sa.ForeignKeyConstraint(["adapter_id"], ["adapter.id"], name=op.f("fk_pin_adapter_id_adapter")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_pin_tenant_id_tenant")),
        sa.PrimaryKeyConstraint("tenant_id", "adapter_id", name=op.f("pk_pin")),
    )


def downgrade() -> None:
    op.drop_table("pin")
    op.drop_table("alias_revision")
    op.drop_table("adapter_file")
    op.drop_table("grant")
    op.drop_table("api_key")
    op.drop_table("alias")
    op.drop_table("adapter_version")
    op.drop_table("usage_event")
    op.drop_table("principal")
    op.drop_table("idempotency")
    op.drop_table("audit_event")
    op.drop_table("adapter")
    op.drop_table("tenant")
    op.drop_table("registry_epoch")
    op.drop_table("change_log")
    op.drop_table("base_model")
    if op.get_context().dialect.name == "postgresql":
        op.execute("DROP FUNCTION lorry_immutable()")
