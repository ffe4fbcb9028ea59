"""The schema: what the models say is what the migrations make, and its constraints hold without any code."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

from catalog.database.engine import Database, make_engine, sqlite_url
from catalog.database.migrate import migrate
from catalog.database.models import Base
from openshelf.errors import OpenshelfError


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    made = Database(make_engine(sqlite_url(tmp_path / "catalog.db")))
    migrate(made.engine)
    yield made
    made.close()


def test_the_migrations_make_what_the_models_say(database: Database) -> None:
    with database.engine.connect() as connection:
        differences = compare_metadata(MigrationContext.configure(connection), Base.metadata)
        tables = connection.execute(text("SELECT name, sql FROM sqlite_master WHERE type = 'table'")).all()
    ours = [entry for entry in differences if "collection_search" not in str(entry)]
    assert ours == []
    made = {name: " ".join(sql.split()) for name, sql in tables if sql}
    for table in Base.metadata.tables.values():
        for constraint in table.constraints:
            if constraint.name:
                assert str(constraint.name) in made[table.name], constraint.name


def test_migrating_twice_changes_nothing(database: Database) -> None:
    migrate(database.engine)


def test_a_database_of_a_newer_version_is_refused(database: Database) -> None:
    with database.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(OpenshelfError, match="newer version"):
        migrate(database.engine)


@pytest.fixture
def rows(tmp_path: Path, database: Database) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "catalog.db")
    connection.executescript(
        """
        PRAGMA foreign_keys = ON;
        INSERT INTO principals (id, name, name_key, created_at) VALUES (1,'a','a',''), (2,'b','b',''), (3,'c','c','');
        INSERT INTO namespaces (id, folder, name, name_key) VALUES (1,'datasets','n','n');
        INSERT INTO collections (id, namespace_id, name, name_key, path, access, title, summary, releases, created_at,
          updated_at) VALUES (1,1,'c','c','datasets/n/c','public','','',0,'','');
        INSERT INTO releases (id, collection_id, version, version_key, state, uploader_id, submitter_id, created,
          title, summary, facets, licence_expression, licence_evidence, source_urls, residency, rows, manifest_digest,
          files, size_bytes, created_at)
          VALUES (1,1,'1','1','submitted',1,2,'','','','{}','MIT','[]','[]','[]',0,x'aa',1,1,'');
        """
    )
    yield connection
    connection.close()


APPROVED = "UPDATE releases SET state = 'approved', approved_digest = manifest_digest, approver_id = "


@pytest.mark.parametrize(
    ("statement", "constraint"),
    [
        (APPROVED + "1", "four_eyes"),
        (APPROVED + "2", "four_eyes"),
        (APPROVED + "NULL", "approval_of_manifest"),
        ("UPDATE releases SET state = 'approved', approver_id = 3, approved_digest = x'bb'", "approval_of_manifest"),
        ("UPDATE releases SET state = 'approved', approver_id = 3", "approval_of_manifest"),
        ("UPDATE releases SET licence_expression = NULL", "submitted_with_licence"),
        ("UPDATE releases SET submitter_id = NULL", "submitted_with_licence"),
        ("UPDATE releases SET manifest_digest = NULL", "sealed_with_manifest"),
        ("UPDATE releases SET state = 'perfect'", "ck_releases_state"),
        (APPROVED + "3, state = 'published'", "published_with_record"),
        ("UPDATE releases SET uploader_id = 99", "FOREIGN KEY"),
        ("UPDATE collections SET access = 'secret'", "ck_collections_access"),
        ("INSERT INTO tokens VALUES (1, 1, 'king', x'00', '', NULL, NULL, NULL)", "ck_tokens_role"),
        ("INSERT INTO principals VALUES (4, 'A', 'a', '')", "UNIQUE"),
    ],
)
def test_the_database_refuses_what_must_never_be(rows: sqlite3.Connection, statement: str, constraint: str) -> None:
    with pytest.raises(sqlite3.IntegrityError, match=constraint):
        rows.execute(statement)


def test_another_person_may_approve(rows: sqlite3.Connection) -> None:
    rows.execute(APPROVED + "3")
    assert rows.execute("SELECT state FROM releases").fetchone() == ("approved",)


def test_a_block_that_raises_leaves_nothing(database: Database) -> None:
    with pytest.raises(RuntimeError), database.write() as session:
        session.execute(text("UPDATE feed_state SET serial = 5"))
        raise RuntimeError
    with database.read() as session:
        assert session.execute(text("SELECT serial FROM feed_state")).scalar() == 0
