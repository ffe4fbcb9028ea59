"""Shapes of tokens on the wire."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from catalog.database.access import Role


def _principal_name(text: str) -> str:
    if text != text.strip() or not text.isprintable():
        raise ValueError("must have no spaces at its ends and no control characters")
    return text


PrincipalName = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_principal_name)]


class NewToken(BaseModel):
    """A token to be made."""

    model_config = ConfigDict(extra="forbid")

    name: PrincipalName = Field(description="The principal; several tokens of one name are one principal")
    role: Role
    expires: str | None = Field(None, description="RFC 3339; never when absent")


class MadeToken(BaseModel):
    """A new token: the only time that it is shown."""

    token: str
    id: int
    name: str
    role: Role
    expires: str | None


class TokenInfo(BaseModel):
    """A token without its secret."""

    id: int
    name: str
    role: Role
    created: str
    expires: str | None
    last_used: str | None
    revoked: str | None


class TokenList(BaseModel):
    """Tokens, oldest first."""

    tokens: list[TokenInfo]


class WhoAmI(BaseModel):
    """The caller."""

    name: str
    role: Role
    token_id: int
