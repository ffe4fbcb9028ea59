"""``/v1/tokens`` and ``/v1/whoami``."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import APIRouter, Path

from catalog.database.access import Role
from catalog.tokens import repository, service
from catalog.tokens.schemas import MadeToken, NewToken, TokenInfo, TokenList, WhoAmI
from catalog.web.dependencies import ADMINISTRATOR, CallerDep, RuntimeDep, require
from catalog.web.problems import documented

router = APIRouter(tags=["tokens"])


@router.post(
    "/v1/tokens", operation_id="createToken", status_code=201, responses=documented(403, 422), summary="Make a token"
)
def create_token(wanted: NewToken, caller: CallerDep, runtime: RuntimeDep) -> MadeToken:
    """The token is shown in this answer only."""
    require(caller, ADMINISTRATOR, "make tokens")
    return service.create(runtime, caller, wanted)


@router.get("/v1/tokens", operation_id="listTokens", responses=documented(403), summary="List tokens")
def list_tokens(caller: CallerDep, runtime: RuntimeDep) -> TokenList:
    """Every token without its secret."""
    require(caller, ADMINISTRATOR, "list tokens")
    with runtime.database.read() as session:
        return TokenList(
            tokens=[
                TokenInfo(
                    id=token.id,
                    name=token.principal.name,
                    role=cast(Role, token.role),
                    created=token.created_at,
                    expires=token.expires_at,
                    last_used=token.last_used_at,
                    revoked=token.revoked_at,
                )
                for token in repository.every(session)
            ]
        )


@router.delete(
    "/v1/tokens/{token_id}",
    operation_id="revokeToken",
    status_code=204,
    responses=documented(403, 404, 422),
    summary="Revoke a token",
)
def revoke_token(token_id: Annotated[int, Path(ge=1, lt=2**62)], caller: CallerDep, runtime: RuntimeDep) -> None:
    """It counts for nothing from now on."""
    require(caller, ADMINISTRATOR, "revoke tokens")
    service.revoke(runtime, caller, token_id)


@router.get("/v1/whoami", operation_id="whoAmI", responses=documented(), summary="Whose token this is")
def whoami(caller: CallerDep) -> WhoAmI:
    """The principal and the role."""
    return WhoAmI(name=caller.name, role=caller.role, token_id=caller.token_id)
