"""The tables, as SQLAlchemy models. Every size, count and digest that a listing shows is a column.

Digests are 32 raw bytes; moments are RFC 3339 texts in UTC, which sort as they are.
"""

from __future__ import annotations

from typing import Annotated, Any

from sqlalchemy import JSON, BigInteger, CheckConstraint, ForeignKey, Index, LargeBinary, String, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship
from sqlalchemy.schema import MetaData

Digest = Annotated[bytes, mapped_column(LargeBinary(32))]
Moment = Annotated[str, mapped_column(String(32))]
Name = Annotated[str, mapped_column(String(64))]
Count = Annotated[int, mapped_column(BigInteger)]
Json = Annotated[Any, mapped_column(JSON(none_as_null=True))]

ROLES = ("reader", "node", "curator", "auditor", "administrator")
STATES = ("draft", "sealed", "submitted", "approved", "published", "rejected", "withdrawn")
ACCESS_RULES = ("public", "restricted")
MEMBER_ROLES = ("owner", "reader")


def _one_of(column: str, values: tuple[str, ...]) -> str:
    return f"{column} IN ({', '.join(repr(value) for value in values)})"


class Base(DeclarativeBase):
    """What all tables share: how constraints are named."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class Principal(Base):
    """A person or a service. Several tokens of one name are one principal."""

    __tablename__ = "principals"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[Name]
    name_key: Mapped[Name] = mapped_column(unique=True)
    created_at: Mapped[Moment]


class Token(Base):
    """A token; of its secret only the SHA-256 is kept."""

    __tablename__ = "tokens"
    __table_args__ = (CheckConstraint(_one_of("role", ROLES), name="role"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    principal_id: Mapped[int] = mapped_column(ForeignKey("principals.id"), index=True)
    role: Mapped[str] = mapped_column(String(16))
    secret_sha256: Mapped[Digest] = mapped_column(unique=True)
    created_at: Mapped[Moment]
    expires_at: Mapped[Moment | None]
    last_used_at: Mapped[Moment | None]
    revoked_at: Mapped[Moment | None]
    principal: Mapped[Principal] = relationship(lazy="joined", innerjoin=True)


class Namespace(Base):
    """A namespace of one kind, unique without regard to case."""

    __tablename__ = "namespaces"
    __table_args__ = (UniqueConstraint("folder", "name_key"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    folder: Mapped[str] = mapped_column(String(16))
    name: Mapped[Name]
    name_key: Mapped[Name]


class Collection(Base):
    """``folder/namespace/name``: what its releases are versions of."""

    __tablename__ = "collections"
    __table_args__ = (
        UniqueConstraint("namespace_id", "name_key"),
        UniqueConstraint("path"),
        CheckConstraint(_one_of("access", ACCESS_RULES), name="access"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    namespace_id: Mapped[int] = mapped_column(ForeignKey("namespaces.id"))
    name: Mapped[Name]
    name_key: Mapped[Name]
    path: Mapped[str] = mapped_column(String(160))
    access: Mapped[str] = mapped_column(String(16))
    title: Mapped[str] = mapped_column(Text)
    summary: Mapped[str] = mapped_column(Text)
    language: Mapped[str | None] = mapped_column(String(64))
    licence: Mapped[str | None] = mapped_column(Text)
    releases: Mapped[Count]
    created_at: Mapped[Moment]
    updated_at: Mapped[Moment]


class CollectionMember(Base):
    """Who owns a collection, and who may read one that is restricted."""

    __tablename__ = "collection_members"
    __table_args__ = (CheckConstraint(_one_of("role", MEMBER_ROLES), name="role"),)

    collection_id: Mapped[int] = mapped_column(ForeignKey("collections.id"), primary_key=True)
    principal_id: Mapped[int] = mapped_column(ForeignKey("principals.id"), primary_key=True, index=True)
    role: Mapped[str] = mapped_column(String(16))


class Release(Base):
    """One version of a collection, its state and who brought it there.

    That nobody approves what he uploaded or submitted, that what is reviewed has a licence, and that an approval is of
    the manifest as it stands, are constraints here, so that no code and no role gets around them.
    """

    __tablename__ = "releases"
    __table_args__ = (
        UniqueConstraint("collection_id", "version_key"),
        CheckConstraint(_one_of("state", STATES), name="state"),
        CheckConstraint("approver_id <> uploader_id AND approver_id <> submitter_id", name="four_eyes"),
        CheckConstraint(
            "state NOT IN ('submitted', 'approved', 'published', 'withdrawn')"
            " OR (submitter_id IS NOT NULL AND licence_expression IS NOT NULL)",
            name="submitted_with_licence",
        ),
        CheckConstraint(
            "state NOT IN ('approved', 'published', 'withdrawn')"
            " OR (approver_id IS NOT NULL AND approved_digest IS NOT NULL AND approved_digest = manifest_digest)",
            name="approval_of_manifest",
        ),
        CheckConstraint("state = 'draft' OR manifest_digest IS NOT NULL", name="sealed_with_manifest"),
        CheckConstraint("state NOT IN ('published', 'withdrawn') OR record IS NOT NULL", name="published_with_record"),
        Index("ix_releases_manifest_digest", "manifest_digest"),
        Index("ix_releases_state", "state"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    collection_id: Mapped[int] = mapped_column(ForeignKey("collections.id"))
    version: Mapped[Name]
    version_key: Mapped[Name]
    state: Mapped[str] = mapped_column(String(16))
    uploader_id: Mapped[int] = mapped_column(ForeignKey("principals.id"))
    submitter_id: Mapped[int | None] = mapped_column(ForeignKey("principals.id"))
    approver_id: Mapped[int | None] = mapped_column(ForeignKey("principals.id"))
    created: Mapped[Moment]
    title: Mapped[str] = mapped_column(Text)
    summary: Mapped[str] = mapped_column(Text)
    facets: Mapped[Json]
    licence_expression: Mapped[str | None] = mapped_column(Text)
    licence_use: Mapped[str | None] = mapped_column(String(32))
    licence_attribution: Mapped[bool | None]
    licence_share_alike: Mapped[bool | None]
    licence_evidence: Mapped[Json]
    source_urls: Mapped[Json]
    recipe_digest: Mapped[str | None] = mapped_column(String(64))
    policy_digest: Mapped[str | None] = mapped_column(String(64))
    residency: Mapped[Json]
    rows: Mapped[Count]
    manifest_digest: Mapped[Digest | None]
    files: Mapped[Count]
    size_bytes: Mapped[Count]
    approved_digest: Mapped[Digest | None]
    reason: Mapped[str | None] = mapped_column(Text)
    reason_code: Mapped[str | None] = mapped_column(String(64))
    legal_basis: Mapped[str | None] = mapped_column(Text)
    record: Mapped[Json | None]
    created_at: Mapped[Moment]
    sealed_at: Mapped[Moment | None]
    submitted_at: Mapped[Moment | None]
    approved_at: Mapped[Moment | None]
    published_at: Mapped[Moment | None]
    withdrawn_at: Mapped[Moment | None]
    withdrawn_serial: Mapped[Count | None]

    collection: Mapped[Collection] = relationship(lazy="joined", innerjoin=True)
    uploader: Mapped[Principal] = relationship(lazy="joined", innerjoin=True, foreign_keys=[uploader_id])
    submitter: Mapped[Principal | None] = relationship(lazy="joined", foreign_keys=[submitter_id])
    approver: Mapped[Principal | None] = relationship(lazy="joined", foreign_keys=[approver_id])


class Tag(Base):
    """A movable name for a published release."""

    __tablename__ = "tags"

    collection_id: Mapped[int] = mapped_column(ForeignKey("collections.id"), primary_key=True)
    name_key: Mapped[Name] = mapped_column(primary_key=True)
    name: Mapped[Name]
    release_id: Mapped[int] = mapped_column(ForeignKey("releases.id"), index=True)


class StoredContent(Base):
    """An object of the store: size in bytes, and the BLAKE3 of its 4 MiB chunks one after the other."""

    __tablename__ = "objects"

    sha256: Mapped[Digest] = mapped_column(primary_key=True)
    size_bytes: Mapped[Count]
    chunks: Mapped[bytes] = mapped_column(LargeBinary)


class Upload(Base):
    """Which principal sent which object himself."""

    __tablename__ = "uploads"

    principal_id: Mapped[int] = mapped_column(ForeignKey("principals.id"), primary_key=True)
    sha256: Mapped[Digest] = mapped_column(ForeignKey("objects.sha256"), primary_key=True)


class ReleaseObject(Base):
    """Which release contains which object: the contents of its files, and its packs."""

    __tablename__ = "release_objects"

    sha256: Mapped[Digest] = mapped_column(ForeignKey("objects.sha256"), primary_key=True)
    release_id: Mapped[int] = mapped_column(ForeignKey("releases.id"), primary_key=True, index=True)


class Attachment(Base):
    """A review object of a release (its report, findings, rejects), kept in a store of its own."""

    __tablename__ = "attachments"

    release_id: Mapped[int] = mapped_column(ForeignKey("releases.id"), primary_key=True)
    name: Mapped[str] = mapped_column(String(180), primary_key=True)
    sha256: Mapped[Digest]
    size_bytes: Mapped[Count]
    media_type: Mapped[str] = mapped_column(String(128))


class FeedState(Base):
    """The feed's epoch and last serial: one row, whose update orders the writers."""

    __tablename__ = "feed_state"
    __table_args__ = (CheckConstraint("id = 1", name="single"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    epoch: Mapped[Count]
    serial: Mapped[Count]


class FeedEvent(Base):
    """A signed event, and the signed ``hidden`` event that stands in for it where it may not be seen.

    ``audience`` says who may see it: ``everybody`` (also those to whom the collection is closed), or ``readers`` of
    the collection and the principals in ``also_for``, who could read it before this very event.
    """

    __tablename__ = "feed_events"
    __table_args__ = (CheckConstraint(_one_of("audience", ("everybody", "readers")), name="audience"),)

    serial: Mapped[Count] = mapped_column(primary_key=True, autoincrement=False)
    epoch: Mapped[Count]
    collection_id: Mapped[int] = mapped_column(ForeignKey("collections.id"))
    audience: Mapped[str] = mapped_column(String(16))
    also_for: Mapped[Json]
    event: Mapped[Json]
    hidden: Mapped[Json]


class LedgerHead(Base):
    """The last entry's number and hash: one row, whose update orders the writers."""

    __tablename__ = "ledger_head"
    __table_args__ = (CheckConstraint("id = 1", name="single"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    sequence: Mapped[Count]
    hash: Mapped[Digest]


class LedgerEntry(Base):
    """Who did what: canonical JSON, chained by hash to the entry before."""

    __tablename__ = "ledger"

    sequence: Mapped[Count] = mapped_column(primary_key=True, autoincrement=False)
    entry: Mapped[str] = mapped_column(Text)
    previous: Mapped[Digest]
    hash: Mapped[Digest]


class MountNode(Base):
    """A node that mounts releases: a principal's token and a name, with what it last said of itself.

    ``feed_serial`` is the last event that it has carried out in full, ``unrecorded`` how many opens are known to be
    missing from its records, ``away`` that its mount has ended.
    """

    __tablename__ = "nodes"
    __table_args__ = (UniqueConstraint("principal_id", "name"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    principal_id: Mapped[int] = mapped_column(ForeignKey("principals.id"))
    name: Mapped[str] = mapped_column(String(255))
    created_at: Mapped[Moment]
    last_seen_at: Mapped[Moment]
    feed_serial: Mapped[Count]
    unrecorded: Mapped[Count]
    away: Mapped[bool]


class UsageRecord(Base):
    """That a job opened files of a release on a node. Counts grow as the node reports again under the same ``record``.

    ``exact`` is false when more distinct files were opened than the node could tell apart.
    """

    __tablename__ = "usage_records"
    __table_args__ = (
        UniqueConstraint("node_id", "record"),
        Index("ix_usage_records_release_id_last_at", "release_id", "last_at"),
        Index("ix_usage_records_job_name", "job_name"),
        Index("ix_usage_records_last_at", "last_at"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    node_id: Mapped[int] = mapped_column(ForeignKey("nodes.id"))
    record: Mapped[bytes] = mapped_column(LargeBinary(16))
    release_id: Mapped[int] = mapped_column(ForeignKey("releases.id"))
    job_kind: Mapped[str] = mapped_column(String(16))
    job_name: Mapped[str] = mapped_column(String(256))
    container: Mapped[str | None] = mapped_column(String(128))
    claimed: Mapped[Json]
    uid: Mapped[Count]
    first_at: Mapped[Moment]
    last_at: Mapped[Moment]
    opens: Mapped[Count]
    files: Mapped[Count]
    bytes_declared: Mapped[Count]
    exact: Mapped[bool]
    received_at: Mapped[Moment]


class WithdrawalConfirmation(Base):
    """What a node did when a release was withdrawn, and who still held files of it when it last looked."""

    __tablename__ = "withdrawal_confirmations"

    release_id: Mapped[int] = mapped_column(ForeignKey("releases.id"), primary_key=True)
    node_id: Mapped[int] = mapped_column(ForeignKey("nodes.id"), primary_key=True, index=True)
    policy: Mapped[str] = mapped_column(String(16))
    done_at: Mapped[Moment]
    objects_removed: Mapped[Count]
    bytes_removed: Mapped[Count]
    holders: Mapped[Json]
    open_files: Mapped[Count]
    released_at: Mapped[Moment | None]
    received_at: Mapped[Moment]
