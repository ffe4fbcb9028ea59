"""What endpoints ask for by type: the running catalog, who calls, and names from the path.

Dependencies that wait for nothing are coroutines: FastAPI would give every other one a thread of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from fastapi import Depends, Path, Query, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from catalog.database.access import Caller, Role
from catalog.names import Collection, ReleaseRef, parse_collection, parse_release
from catalog.releases.schemas import HexDigest
from catalog.runtime import Runtime
from catalog.tokens import service as tokens
from catalog.web.problems import Forbidden, Unauthorized

_BEARER = HTTPBearer(auto_error=False, description="A token made with `openshelf token create`")

ADMINISTRATOR: tuple[Role, ...] = ("administrator",)
CURATORS: tuple[Role, ...] = ("curator", "administrator")
AUDITORS: tuple[Role, ...] = ("auditor", "administrator")
STAFF: tuple[Role, ...] = ("curator", "auditor", "administrator")


async def the_runtime(request: Request) -> Runtime:
    """The catalog that answers this request."""
    runtime = request.app.state.runtime
    assert isinstance(runtime, Runtime)
    return runtime


RuntimeDep = Annotated[Runtime, Depends(the_runtime)]


def the_caller(
    request: Request,
    runtime: RuntimeDep,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)],
) -> Caller:
    """Who holds the token of this request; :class:`Unauthorized` when there is none that counts."""
    if credentials is None:
        raise _no_token()
    caller = tokens.authenticate(runtime, credentials.credentials)
    request.scope["openshelf.principal"] = caller.principal_id
    return caller


def admit(runtime: Runtime, authorization: str | None) -> None:
    """:class:`Unauthorized` unless ``authorization``, the header's value, holds a token that counts."""
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() != "bearer":
        raise _no_token()
    tokens.authenticate(runtime, token)


def _no_token() -> Unauthorized:
    return Unauthorized(
        "no_token", "The request carries no token", "Send it as `Authorization: Bearer …` (OPENSHELF_TOKEN)."
    )


CallerDep = Annotated[Caller, Depends(the_caller)]


def require(caller: Caller, roles: Iterable[Role], what: str) -> None:
    """:class:`Forbidden` unless the caller's token has one of ``roles``."""
    allowed = tuple(roles)
    if caller.role not in allowed:
        raise Forbidden(
            "forbidden",
            f"A token with the role {caller.role} may not {what}",
            f"Use a token with the role {' or '.join(allowed)}.",
        )


async def the_collection(folder: str, namespace: str, name: str) -> Collection:
    """The collection that the path names."""
    return parse_collection(f"{folder}/{namespace}/{name}")


CollectionDep = Annotated[Collection, Depends(the_collection)]


async def the_release(collection: CollectionDep, version: str) -> ReleaseRef:
    """The release that the path names (reading accepts a tag in the place of the version)."""
    return parse_release(f"{collection}@{version}")


RefDep = Annotated[ReleaseRef, Depends(the_release)]
DigestPath = Annotated[HexDigest, Path(description="SHA-256 in lower-case hexadecimal")]
Limit = Annotated[int, Query(ge=1, le=1000, description="How many at most")]
Cursor = Annotated[str | None, Query(max_length=2000, description="`next` of the page before")]
