"""Who is asking, whose tokens there are, and the ledger of who did what."""

from __future__ import annotations

from typing import Any

from catalog.client.models import TokenInfo
from catalog.client.session import Session


class People:
    """The part of the client about principals and their tokens; most of it is for administrators."""

    _session: Session

    def whoami(self) -> dict[str, Any]:
        """The principal of this client's token: ``name`` and ``role``."""
        return self._session.call("GET", "/v1/whoami").json()

    def create_token(self, name: str, role: str, expires: str | None = None) -> dict[str, Any]:
        """A new token of the principal ``name``: ``token`` (shown this once), ``id``, ``name``, ``role``.

        ``role`` is reader, node, curator, auditor or administrator; ``expires`` an RFC 3339 time or None for never.
        """
        body = {"name": name, "role": role} | ({"expires": expires} if expires else {})
        return self._session.call("POST", "/v1/tokens", json_body=body).json()

    def tokens(self) -> list[TokenInfo]:
        """Every token of the catalog, without secrets."""
        return [TokenInfo.from_json(item) for item in self._session.call("GET", "/v1/tokens").items("tokens")]

    def revoke_token(self, token_id: str) -> None:
        """End a token at once."""
        self._session.call("DELETE", f"/v1/tokens/{token_id}")

    def ledger(self, after: int = 0, limit: int = 1000) -> list[dict[str, Any]]:
        """Entries of the ledger after the sequence number ``after``, oldest first."""
        return self._session.call("GET", "/v1/ledger", query={"after": after, "limit": limit}).items("entries")
