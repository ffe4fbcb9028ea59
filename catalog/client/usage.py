"""Which job used what on which node, and what nodes did about withdrawals: for nodes to tell, for people to ask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from catalog.client.paths import release_path
from catalog.client.reading import Reading
from catalog.client.session import Session
from catalog.names import ReleaseRef

By = Literal["job", "user", "release", "node"]


class UsageReports(Reading):
    """The part of the client about usage. The shapes are those of the catalog's OpenAPI document."""

    _session: Session

    def report_usage(
        self,
        node: str,
        records: Sequence[Mapping[str, Any]],
        *,
        feed_serial: int,
        unrecorded: int,
        ends: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """Tell what jobs opened on ``node``, 1,000 records at most; ``ends``: its mount ends. One attempt; may be sent
        again at any time."""
        body = {"node": node, "feed_serial": feed_serial, "unrecorded": unrecorded, "records": list(records)}
        body |= {"ends": True} if ends else {}
        self._session.call("POST", "/v1/usage", json_body=body, timeout_s=timeout_s)

    def confirm_withdrawal(self, told: Mapping[str, Any], *, timeout_s: float | None = None) -> None:
        """Tell what was done about a withdrawal, and who still holds files.

        Raises :class:`~catalog.client.errors.Conflict` or :class:`~catalog.client.errors.NotFound` when the catalog
        knows of no such withdrawal.
        """
        self._session.call("POST", "/v1/nodes/confirmations", json_body=dict(told), timeout_s=timeout_s)

    def usage(self, wanted: Mapping[str, str | int], limit: int = 1000) -> list[dict[str, Any]]:
        """Records of usage, the newest first; ``wanted`` may hold release, collection, job, node, uid, since, until."""
        return list(self._pages("/v1/usage", "records", limit, dict(wanted)))

    def usage_groups(self, wanted: Mapping[str, str | int], by: By, limit: int = 1000) -> dict[str, Any]:
        """Usage by job, user, release or node: ``groups`` (the last used first), ``more``, ``unrecorded``."""
        query: dict[str, str | int | float] = {**wanted, "by": by, "limit": limit}
        return self._session.call("GET", "/v1/usage/groups", query=query).json()

    def confirmations(self, ref: ReleaseRef) -> dict[str, Any]:
        """Which nodes have carried out a withdrawal (``confirmations``) and which have not (``outstanding``)."""
        return self._session.call("GET", release_path(ref, "confirmations")).json()
