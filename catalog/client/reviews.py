"""What people decide about a release: submit, approve, reject, publish, withdraw, tag."""

from __future__ import annotations

from catalog.client.models import ReleaseInfo
from catalog.client.paths import release_path, tag_path
from catalog.client.session import Session
from catalog.names import Collection, ReleaseRef


class Reviews:
    """The part of the client that moves a release from state to state.

    Every method raises :class:`~catalog.client.errors.Conflict` when the release's state does not allow the step, and
    :class:`~catalog.client.errors.Forbidden` when the caller may not take it. None is repeated by itself.
    """

    _session: Session

    def _step(self, ref: ReleaseRef, step: str, body: dict[str, str] | None = None) -> ReleaseInfo:
        answer = self._session.call("POST", release_path(ref, step), json_body=body or {})
        return ReleaseInfo.from_json(answer.json())

    def submit(self, ref: ReleaseRef) -> ReleaseInfo:
        """Ask for the review of a sealed draft; a licence must be known."""
        return self._step(ref, "submit")

    def approve(self, ref: ReleaseRef, note: str = "", manifest_digest: str | None = None) -> ReleaseInfo:
        """Approve a submitted release; neither its submitter nor its uploader may.

        With ``manifest_digest`` (hexadecimal) only that one: :class:`~catalog.client.errors.Conflict` when the release
        was returned and came again with other files since it was looked at.
        """
        seen = {"manifest_digest": manifest_digest} if manifest_digest else {}
        return self._step(ref, "approve", {"note": note, **seen})

    def reject(self, ref: ReleaseRef, reason: str) -> ReleaseInfo:
        """Reject a submitted release; its version may be ingested again."""
        return self._step(ref, "reject", {"reason": reason})

    def return_to_draft(self, ref: ReleaseRef, reason: str) -> ReleaseInfo:
        """Ask for changes: the release becomes a draft again, with the reason."""
        return self._step(ref, "return", {"reason": reason})

    def publish(self, ref: ReleaseRef) -> ReleaseInfo:
        """Sign an approved release and announce it to every node."""
        return self._step(ref, "publish")

    def withdraw(
        self, ref: ReleaseRef, reason_code: str, note: str = "", legal_basis: str = "", *, revoke: bool = False
    ) -> ReleaseInfo:
        """Take a published release down for good; its tags go with it.

        With ``revoke``, files of it that jobs have open end too, on every node.
        """
        body = {"reason_code": reason_code, "note": note, "legal_basis": legal_basis}
        return self._step(ref, "withdraw", body | ({"policy": "revoke"} if revoke else {}))

    def tag(self, ref: ReleaseRef, tag: str) -> ReleaseInfo:
        """Let ``tag`` name the published release ``ref``, moving it when it names another."""
        answer = self._session.call("PUT", tag_path(ref.collection, tag), json_body={"version": ref.version})
        return ReleaseInfo.from_json(answer.json())

    def untag(self, collection: Collection, tag: str) -> None:
        """Remove a tag."""
        self._session.call("DELETE", tag_path(collection, tag))
