"""``openshelf token``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

import typer

from catalog.cli.connection import Json, open_client
from openshelf.console import emit_json, say
from openshelf.errors import UsageError

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Role = Literal["reader", "node", "curator", "auditor", "administrator"]


@app.command("create")
def create(
    role: Annotated[Role, typer.Option("--role", help="What the token may do.")],
    name: Annotated[str, typer.Option("--name", help="The person or node; several tokens of one name are one.")],
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="TIME", help="e.g. 2027-01-31T12:00:00Z; default never."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a token. It is shown this once; the catalog keeps only a hash.

    Example: openshelf token create --role curator --name lin
    """
    until = None if expires is None else _time(expires)
    with open_client() as client:
        made = client.create_token(name, role, until)
    if as_json:
        emit_json(made)
        return
    say(f"A token for {name} ({role}), number {made.get('id')}. It is not shown again:")
    print(made.get("token"))


@app.command("list")
def list_tokens(as_json: Json = False) -> None:
    """List every token of the catalog, without secrets.

    Example: openshelf token list
    """
    with open_client() as client:
        tokens = client.tokens()
    if as_json:
        emit_json({"tokens": [token.to_json() for token in tokens]})
        return
    for token in tokens:
        state = "revoked" if token.revoked else f"expires {token.expires}" if token.expires else "valid"
        print(f"{token.id:>5}  {token.role:<13}  {token.name}  {state}, last used {token.last_used or 'never'}")


@app.command("revoke")
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="Its number in `openshelf token list`.")],
    as_json: Json = False,
) -> None:
    """End a token at once.

    Example: openshelf token revoke 7
    """
    if not token_id.isascii() or not token_id.isdigit():
        raise UsageError("bad_token_id", "That is not a token's number", "`openshelf token list` shows them.")
    with open_client() as client:
        client.revoke_token(token_id)
    if as_json:
        emit_json({"id": token_id, "revoked": True})
    else:
        say(f"Token {token_id} is revoked.")


def _time(text: str) -> str:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError("bad_time", f"{text!r} is not a time", "Write it like 2027-01-31T12:00:00Z.") from error
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return aware.astimezone(UTC).isoformat().replace("+00:00", "Z")
