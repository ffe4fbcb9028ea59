"""Usage: nodes, which job opened which release there, and what nodes did about withdrawals."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    op.add_column("releases", sa.Column("withdrawn_serial", sa.BigInteger(), nullable=True))
    op.create_table(
        "nodes",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("principal_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.Column("last_seen_at", sa.String(length=32), nullable=False),
        sa.Column("feed_serial", sa.BigInteger(), nullable=False),
        sa.Column("unrecorded", sa.BigInteger(), nullable=False),
        sa.Column("away", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["principal_id"], ["principals.id"], name=op.f("fk_nodes_principal_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_nodes")),
        sa.UniqueConstraint("principal_id", "name", name=op.f("uq_nodes_principal_id_name")),
    )
    op.create_table(
        "usage_records",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("node_id", sa.Integer(), nullable=False),
        sa.Column("record", sa.LargeBinary(length=16), nullable=False),
        sa.Column("release_id", sa.Integer(), nullable=False),
        sa.Column("job_kind", sa.String(length=16), nullable=False),
        sa.Column("job_name", sa.String(length=256), nullable=False),
        sa.Column("container", sa.String(length=128), nullable=True),
        sa.Column("claimed", sa.JSON(), nullable=False),
        sa.Column("uid", sa.BigInteger(), nullable=False),
        sa.Column("first_at", sa.String(length=32), nullable=False),
        sa.Column("last_at", sa.String(length=32), nullable=False),
        sa.Column("opens", sa.BigInteger(), nullable=False),
        sa.Column("files", sa.BigInteger(), nullable=False),
        sa.Column("bytes_declared", sa.BigInteger(), nullable=False),
        sa.Column("exact", sa.Boolean(), nullable=False),
        sa.Column("received_at", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_usage_records_node_id")),
        sa.ForeignKeyConstraint(["release_id"], ["releases.id"], name=op.f("fk_usage_records_release_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_usage_records")),
        sa.UniqueConstraint("node_id", "record", name=op.f("uq_usage_records_node_id_record")),
    )
    op.create_index("ix_usage_records_release_id_last_at", "usage_records", ["release_id", "last_at"], unique=False)
    op.create_index("ix_usage_records_job_name", "usage_records", ["job_name"], unique=False)
    op.create_index("ix_usage_records_last_at", "usage_records", ["last_at"], unique=False)
    op.create_table(
        "withdrawal_confirmations",
        sa.Column("release_id", sa.Integer(), nullable=False),
        sa.Column("node_id", sa.Integer(), nullable=False),
        sa.Column("policy", sa.String(length=16), nullable=False),
        sa.Column("done_at", sa.String(length=32), nullable=False),
        sa.Column("objects_removed", sa.BigInteger(), nullable=False),
        sa.Column("bytes_removed", sa.BigInteger(), nullable=False),
        sa.Column("holders", sa.JSON(), nullable=False),
        sa.Column("open_files", sa.BigInteger(), nullable=False),
        sa.Column("released_at", sa.String(length=32), nullable=True),
        sa.Column("received_at", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_withdrawal_confirmations_node_id")),
        sa.ForeignKeyConstraint(["release_id"], ["releases.id"], name=op.f("fk_withdrawal_confirmations_release_id")),
        sa.PrimaryKeyConstraint("release_id", "node_id", name=op.f("pk_withdrawal_confirmations")),
    )
    op.create_index(op.f("ix_withdrawal_confirmations_node_id"), "withdrawal_confirmations", ["node_id"], unique=False)


def downgrade() -> None:
    """What nodes reported is not thrown away by a command."""
    raise NotImplementedError("Restore the backup made before the upgrade.")
