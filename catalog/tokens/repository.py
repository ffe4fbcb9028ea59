"""SQL of principals and tokens."""

from __future__ import annotations

import unicodedata

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from catalog.database.access import Role
from catalog.database.models import Principal, Token


def _key(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold()


def principal_named(session: Session, name: str) -> Principal | None:
    """The principal of this name, without regard to case."""
    return session.scalars(select(Principal).where(Principal.name_key == _key(name))).one_or_none()


def ensure_principal(session: Session, name: str, at: str) -> Principal:
    """The principal of this name, made when there is none yet."""
    found = principal_named(session, name)
    if found is None:
        found = Principal(name=name, name_key=_key(name), created_at=at)
        session.add(found)
        session.flush()
    return found


def add_token(
    session: Session, principal: Principal, role: Role, secret_sha256: bytes, at: str, expires: str | None
) -> Token:
    """A new token of ``principal``."""
    token = Token(
        principal_id=principal.id,
        role=role,
        secret_sha256=secret_sha256,
        created_at=at,
        expires_at=expires,
    )
    token.principal = principal
    session.add(token)
    session.flush()
    return token


def by_secret(session: Session, secret_sha256: bytes) -> Token | None:
    """The token with this digest."""
    return session.scalars(select(Token).where(Token.secret_sha256 == secret_sha256)).one_or_none()


def by_id(session: Session, token_id: int) -> Token | None:
    """The token with this number."""
    return session.get(Token, token_id)


def every(session: Session) -> list[Token]:
    """All tokens, oldest first."""
    return list(session.scalars(select(Token).order_by(Token.id)))


def count(session: Session) -> int:
    """How many tokens there are, revoked ones included."""
    return session.scalar(select(func.count()).select_from(Token)) or 0


def touch(session: Session, token_id: int, at: str) -> None:
    """Note that the token was used."""
    session.execute(update(Token).where(Token.id == token_id).values(last_used_at=at))
