"""SQL of search (SQLite FTS5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import ColumnElement, column, func, literal_column, select, table, text
from sqlalchemy.orm import Session

from catalog.collections.repository import listed
from catalog.database.access import Caller
from catalog.database.models import Collection
from catalog.search.words import document_words

_INDEX = table("collection_search", column("rowid"), column("words"))
FACETS = {"language": Collection.language, "licence": Collection.licence}


def index(session: Session, collection: Collection) -> None:
    """Make the collection findable by its name and card as they are now."""
    words = document_words(
        " ".join(
            part
            for part in (
                collection.path.replace("/", " "),
                collection.title,
                collection.summary,
                collection.language,
                collection.licence,
            )
            if part
        )
    )
    session.execute(text("DELETE FROM collection_search WHERE rowid = :id"), {"id": collection.id})
    session.execute(
        text("INSERT INTO collection_search (rowid, words) VALUES (:id, :words)"),
        {"id": collection.id, "words": " ".join(words)},
    )


def _matching(caller: Caller, terms: Sequence[str], facets: Mapping[str, str]) -> list[ColumnElement[bool]]:
    """What a collection must fulfil: the caller sees it, its facets are these, and every term is found."""
    conditions = [listed(caller), *(FACETS[name] == value for name, value in facets.items())]
    if terms:
        conditions += [
            _INDEX.c.rowid == Collection.id,
            literal_column("collection_search").op("MATCH", is_comparison=True)(" ".join(terms)),
        ]
    return conditions


def find(
    session: Session, caller: Caller, terms: Sequence[str], facets: Mapping[str, str], offset: int, limit: int
) -> list[Collection]:
    """Collections that the caller sees and that match, best first."""
    query = select(Collection).where(*_matching(caller, terms, facets))
    order = [literal_column("collection_search.rank"), Collection.path] if terms else [Collection.path]
    return list(session.scalars(query.order_by(*order).offset(offset).limit(limit)))


def count_by(
    session: Session, caller: Caller, terms: Sequence[str], facets: Mapping[str, str], facet: str
) -> dict[str, int]:
    """How many matching collections have each value of ``facet``."""
    values = FACETS[facet]
    query = (
        select(values, func.count())
        .where(*_matching(caller, terms, facets), values.is_not(None))
        .group_by(values)
        .order_by(func.count().desc(), values)
    )
    return {str(value): int(number) for value, number in session.execute(query)}
