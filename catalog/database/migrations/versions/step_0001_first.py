"""The first schema: principals, collections, releases, objects, feed, ledger, search."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_APPEND_ONLY = ("ledger", "feed_events")


def upgrade() -> None:
    """Make every table."""
    _tables()
    op.execute("INSERT INTO feed_state (id, epoch, serial) VALUES (1, 1, 0)")
    op.execute(sa.text("INSERT INTO ledger_head (id, sequence, hash) VALUES (1, 0, :hash)").bindparams(hash=bytes(32)))
    if op.get_bind().dialect.name == "sqlite":
        for table in _APPEND_ONLY:
            for verb in ("UPDATE", "DELETE"):
                op.execute(
                    f"CREATE TRIGGER {table}_refuses_{verb.lower()} BEFORE {verb} ON {table} "
                    f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
                )
        op.execute("CREATE VIRTUAL TABLE collection_search USING fts5(words, tokenize = 'unicode61')")


def downgrade() -> None:
    """There is nothing before the first schema."""
    raise NotImplementedError("Restore the backup made before the upgrade.")


def _tables() -> None:
    op.create_table(
        "feed_state",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("serial", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_feed_state_single")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_feed_state")),
    )
    op.create_table(
        "ledger",
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("entry", sa.Text(), nullable=False),
        sa.Column("previous", sa.LargeBinary(length=32), nullable=False),
        sa.Column("hash", sa.LargeBinary(length=32), nullable=False),
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_ledger")),
    )
    op.create_table(
        "ledger_head",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.LargeBinary(length=32), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_ledger_head_single")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ledger_head")),
    )
    op.create_table(
        "namespaces",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("folder", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("name_key", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_namespaces")),
        sa.UniqueConstraint("folder", "name_key", name=op.f("uq_namespaces_folder_name_key")),
    )
    op.create_table(
        "objects",
        sa.Column("sha256", sa.LargeBinary(length=32), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("chunks", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_objects")),
    )
    op.create_table(
        "principals",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("name_key", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_principals")),
        sa.UniqueConstraint("name_key", name=op.f("uq_principals_name_key")),
    )
    op.create_table(
        "collections",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("namespace_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("name_key", sa.String(length=64), nullable=False),
        sa.Column("path", sa.String(length=160), nullable=False),
        sa.Column("access", sa.String(length=16), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("language", sa.String(length=64), nullable=True),
        sa.Column("licence", sa.Text(), nullable=True),
        sa.Column("releases", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.Column("updated_at", sa.String(length=32), nullable=False),
        sa.CheckConstraint("access IN ('public', 'restricted')", name=op.f("ck_collections_access")),
        sa.ForeignKeyConstraint(["namespace_id"], ["namespaces.id"], name=op.f("fk_collections_namespace_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_collections")),
        sa.UniqueConstraint("namespace_id", "name_key", name=op.f("uq_collections_namespace_id_name_key")),
        sa.UniqueConstraint("path", name=op.f("uq_collections_path")),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("principal_id", sa.Integer(), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("secret_sha256", sa.LargeBinary(length=32), nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.Column("expires_at", sa.String(length=32), nullable=True),
        sa.Column("last_used_at", sa.String(length=32), nullable=True),
        sa.Column("revoked_at", sa.String(length=32), nullable=True),
        sa.CheckConstraint(
            "role IN ('reader', 'node', 'curator', 'auditor', 'administrator')", name=op.f("ck_tokens_role")
        ),
        sa.ForeignKeyConstraint(["principal_id"], ["principals.id"], name=op.f("fk_tokens_principal_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("secret_sha256", name=op.f("uq_tokens_secret_sha256")),
    )
    op.create_index(op.f("ix_tokens_principal_id"), "tokens", ["principal_id"], unique=False)
    op.create_table(
        "uploads",
        sa.Column("principal_id", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.LargeBinary(length=32), nullable=False),
        sa.ForeignKeyConstraint(["principal_id"], ["principals.id"], name=op.f("fk_uploads_principal_id")),
        sa.ForeignKeyConstraint(["sha256"], ["objects.sha256"], name=op.f("fk_uploads_sha256")),
        sa.PrimaryKeyConstraint("principal_id", "sha256", name=op.f("pk_uploads")),
    )
    op.create_table(
        "collection_members",
        sa.Column("collection_id", sa.Integer(), nullable=False),
        sa.Column("principal_id", sa.Integer(), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.CheckConstraint("role IN ('owner', 'reader')", name=op.f("ck_collection_members_role")),
        sa.ForeignKeyConstraint(
            ["collection_id"], ["collections.id"], name=op.f("fk_collection_members_collection_id")
        ),
        sa.ForeignKeyConstraint(["principal_id"], ["principals.id"], name=op.f("fk_collection_members_principal_id")),
        sa.PrimaryKeyConstraint("collection_id", "principal_id", name=op.f("pk_collection_members")),
    )
    op.create_index(op.f("ix_collection_members_principal_id"), "collection_members", ["principal_id"], unique=False)
    op.create_table(
        "feed_events",
        sa.Column("serial", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("collection_id", sa.Integer(), nullable=False),
        sa.Column("audience", sa.String(length=16), nullable=False),
        sa.Column("also_for", sa.JSON(), nullable=False),
        sa.Column("event", sa.JSON(), nullable=False),
        sa.Column("hidden", sa.JSON(), nullable=False),
        sa.CheckConstraint("audience IN ('everybody', 'readers')", name=op.f("ck_feed_events_audience")),
        sa.ForeignKeyConstraint(["collection_id"], ["collections.id"], name=op.f("fk_feed_events_collection_id")),
        sa.PrimaryKeyConstraint("serial", name=op.f("pk_feed_events")),
    )
    op.create_table(
        "releases",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("collection_id", sa.Integer(), nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.Column("version_key", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("uploader_id", sa.Integer(), nullable=False),
        sa.Column("submitter_id", sa.Integer(), nullable=True),
        sa.Column("approver_id", sa.Integer(), nullable=True),
        sa.Column("created", sa.String(length=32), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("facets", sa.JSON(), nullable=False),
        sa.Column("licence_expression", sa.Text(), nullable=True),
        sa.Column("licence_use", sa.String(length=32), nullable=True),
        sa.Column("licence_attribution", sa.Boolean(), nullable=True),
        sa.Column("licence_share_alike", sa.Boolean(), nullable=True),
        sa.Column("licence_evidence", sa.JSON(), nullable=False),
        sa.Column("source_urls", sa.JSON(), nullable=False),
        sa.Column("recipe_digest", sa.String(length=64), nullable=True),
        sa.Column("policy_digest", sa.String(length=64), nullable=True),
        sa.Column("residency", sa.JSON(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("manifest_digest", sa.LargeBinary(length=32), nullable=True),
        sa.Column("files", sa.BigInteger(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("approved_digest", sa.LargeBinary(length=32), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("reason_code", sa.String(length=64), nullable=True),
        sa.Column("legal_basis", sa.Text(), nullable=True),
        sa.Column("record", sa.JSON(), nullable=True),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.Column("sealed_at", sa.String(length=32), nullable=True),
        sa.Column("submitted_at", sa.String(length=32), nullable=True),
        sa.Column("approved_at", sa.String(length=32), nullable=True),
        sa.Column("published_at", sa.String(length=32), nullable=True),
        sa.Column("withdrawn_at", sa.String(length=32), nullable=True),
        sa.CheckConstraint(
            "state = 'draft' OR manifest_digest IS NOT NULL", name=op.f("ck_releases_sealed_with_manifest")
        ),
        sa.CheckConstraint(
            "state IN ('draft', 'sealed', 'submitted', 'approved', 'published', 'rejected', 'withdrawn')",
            name=op.f("ck_releases_state"),
        ),
        sa.CheckConstraint(
            "state NOT IN ('approved', 'published', 'withdrawn')"
            " OR (approver_id IS NOT NULL AND approved_digest IS NOT NULL AND approved_digest = manifest_digest)",
            name=op.f("ck_releases_approval_of_manifest"),
        ),
        sa.CheckConstraint(
            "state NOT IN ('published', 'withdrawn') OR record IS NOT NULL",
            name=op.f("ck_releases_published_with_record"),
        ),
        sa.CheckConstraint(
            "state NOT IN ('submitted', 'approved', 'published', 'withdrawn')"
            " OR (submitter_id IS NOT NULL AND licence_expression IS NOT NULL)",
            name=op.f("ck_releases_submitted_with_licence"),
        ),
        sa.CheckConstraint(
            "approver_id <> uploader_id AND approver_id <> submitter_id", name=op.f("ck_releases_four_eyes")
        ),
        sa.ForeignKeyConstraint(["approver_id"], ["principals.id"], name=op.f("fk_releases_approver_id")),
        sa.ForeignKeyConstraint(["collection_id"], ["collections.id"], name=op.f("fk_releases_collection_id")),
        sa.ForeignKeyConstraint(["submitter_id"], ["principals.id"], name=op.f("fk_releases_submitter_id")),
        sa.ForeignKeyConstraint(["uploader_id"], ["principals.id"], name=op.f("fk_releases_uploader_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_releases")),
        sa.UniqueConstraint("collection_id", "version_key", name=op.f("uq_releases_collection_id_version_key")),
    )
    op.create_index("ix_releases_manifest_digest", "releases", ["manifest_digest"], unique=False)
    op.create_index("ix_releases_state", "releases", ["state"], unique=False)
    op.create_table(
        "attachments",
        sa.Column("release_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=180), nullable=False),
        sa.Column("sha256", sa.LargeBinary(length=32), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("media_type", sa.String(length=128), nullable=False),
        sa.ForeignKeyConstraint(["release_id"], ["releases.id"], name=op.f("fk_attachments_release_id")),
        sa.PrimaryKeyConstraint("release_id", "name", name=op.f("pk_attachments")),
    )
    op.create_table(
        "release_objects",
        sa.Column("sha256", sa.LargeBinary(length=32), nullable=False),
        sa.Column("release_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["release_id"], ["releases.id"], name=op.f("fk_release_objects_release_id")),
        sa.ForeignKeyConstraint(["sha256"], ["objects.sha256"], name=op.f("fk_release_objects_sha256")),
        sa.PrimaryKeyConstraint("sha256", "release_id", name=op.f("pk_release_objects")),
    )
    op.create_index(op.f("ix_release_objects_release_id"), "release_objects", ["release_id"], unique=False)
    op.create_table(
        "tags",
        sa.Column("collection_id", sa.Integer(), nullable=False),
        sa.Column("name_key", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("release_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["collection_id"], ["collections.id"], name=op.f("fk_tags_collection_id")),
        sa.ForeignKeyConstraint(["release_id"], ["releases.id"], name=op.f("fk_tags_release_id")),
        sa.PrimaryKeyConstraint("collection_id", "name_key", name=op.f("pk_tags")),
    )
    op.create_index(op.f("ix_tags_release_id"), "tags", ["release_id"], unique=False)
