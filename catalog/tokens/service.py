"""Make, check and revoke tokens."""

from __future__ import annotations

import hmac
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import structlog

from catalog.audit import ledger
from catalog.database.access import Caller, Role
from catalog.database.engine import DatabaseFull
from catalog.database.models import Token
from catalog.runtime import Runtime, rfc3339
from catalog.token_format import BadToken, key_prefix, make_token, parse_token, secret_digest
from catalog.tokens import repository
from catalog.tokens.schemas import MadeToken, NewToken
from catalog.web.problems import NotFound, Unauthorized, Unprocessable

log = structlog.get_logger("catalog.tokens")

ADMIN_NAME = "admin"
LAST_USE_RESOLUTION = timedelta(minutes=1)
"""The last use of a token is written at most this often: reading must not become writing."""


def authenticate(runtime: Runtime, text: str) -> Caller:
    """Who holds the token ``text``; :class:`Unauthorized` when it is malformed, unknown, revoked or expired."""
    hint = "Ask an administrator for a token of this catalog."
    try:
        prefix, secret = parse_token(text)
    except BadToken as error:
        raise Unauthorized(error.code, error.message, error.hint) from None
    digest = secret_digest(secret)
    if not hmac.compare_digest(prefix, key_prefix(runtime.key.public_bytes)):
        raise Unauthorized("foreign_token", "The token belongs to another catalog", hint)
    with runtime.database.read() as session:
        token = repository.by_secret(session, digest)
    if token is None or not hmac.compare_digest(token.secret_sha256, digest):
        raise Unauthorized("unknown_token", "The catalog does not know this token", hint)
    now = runtime.now()
    if token.revoked_at is not None:
        raise Unauthorized("revoked_token", "The token was revoked", hint)
    if token.expires_at is not None and token.expires_at <= now:
        raise Unauthorized("expired_token", f"The token expired at {token.expires_at}", hint)
    _note_use(runtime, token)
    return Caller(token.principal_id, token.principal.name, cast(Role, token.role), token.id)


def _note_use(runtime: Runtime, token: Token) -> None:
    if runtime.database.busy:
        return  # a seal of many files writes for seconds, and no reader shall wait for that
    if token.last_used_at is None or token.last_used_at <= rfc3339(runtime.clock() - LAST_USE_RESOLUTION):
        try:
            with runtime.database.write() as session:
                repository.touch(session, token.id, runtime.now())
        except DatabaseFull:
            log.warning("token.last_use_not_noted", token=token.id)  # reading goes on while the disk is full


def _expiry(text: str | None, now: datetime) -> str | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None and moment > now:
            return rfc3339(moment.astimezone(UTC))
    except (ValueError, OverflowError):
        pass  # no moment at all, or none that UTC has
    raise Unprocessable("bad_expiry", "The expiry is not a later moment", "Write it like 2027-01-31T00:00:00Z.")


def create(runtime: Runtime, caller: Caller, wanted: NewToken) -> MadeToken:
    """A new token; the secret is in the answer and nowhere else."""
    expires = _expiry(wanted.expires, runtime.clock())
    text, digest = make_token(runtime.key.public_bytes)
    now = runtime.now()
    with runtime.change() as session:
        principal = repository.ensure_principal(session, wanted.name, now)
        token = repository.add_token(session, principal, wanted.role, digest, now, expires)
        ledger.append(session, now, caller, "token.created", principal.name, {"token": token.id, "role": token.role})
        return MadeToken(token=text, id=token.id, name=principal.name, role=wanted.role, expires=expires)


def revoke(runtime: Runtime, caller: Caller, token_id: int) -> None:
    """Make a token useless from now on; revoking twice is no error."""
    now = runtime.now()
    with runtime.change() as session:
        token = repository.by_id(session, token_id)
        if token is None:
            raise NotFound("no_token_of_id", f"There is no token {token_id}", "List them with GET /v1/tokens.")
        if token.revoked_at is None:
            token.revoked_at = now
            ledger.append(
                session, now, caller, "token.revoked", token.principal.name, {"token": token.id, "role": token.role}
            )


def first_token(runtime: Runtime) -> Path | None:
    """At the first start, make an administrator's token and write it to ``DATA/admin.token``; its path when it did."""
    path = runtime.data / "admin.token"
    now = runtime.now()
    with runtime.change() as session:
        if repository.count(session):
            return None
        text, digest = make_token(runtime.key.public_bytes)
        principal = repository.ensure_principal(session, ADMIN_NAME, now)
        token = repository.add_token(session, principal, "administrator", digest, now, None)
        ledger.append(session, now, None, "token.created", principal.name, {"token": token.id, "role": token.role})
        # Written before the commit: a crash in between leaves a useless file, which the next start replaces.
        _write_secret(path, text)
    return path


def _write_secret(path: Path, text: str) -> None:
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as sink:
        sink.write(text)
        sink.flush()
        os.fsync(sink.fileno())
    temporary.rename(path)
