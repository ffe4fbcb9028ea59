"""The catalog: whether it answers, whether it knows this node, and whether the clocks agree."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from datetime import datetime

from catalog.client import Client
from catalog.signing import fingerprint
from catalog.trust import trusted_key
from mountd.doctor.check import Check, judge
from openshelf.errors import OpenshelfError

_SILENT_S = 3.0
_CLOCKS_APART_S = 60.0


def checks(
    url: str, token: str | None, catalog_key: str | None = None, now: Callable[[], float] = time.time
) -> Iterator[Check]:
    """Everything about the catalog at ``url``; the token itself is never shown."""
    if not token:
        yield Check("token", "fail", "none is set", "Ask an administrator for one of role node; set OPENSHELF_TOKEN.")
    else:
        yield Check("token", "ok", f"SHA-256 {hashlib.sha256(token.encode()).hexdigest()[:12]}…")
    with Client(url, token, timeout_s=_SILENT_S) as client:
        try:
            key = trusted_key(client, token=token, catalog_key=catalog_key)
            yield Check("catalog", "ok", f"{url}, key {fingerprint(key)[:12]}…")
            issued = client.feed_head().document["issued"] if token else None
        except OpenshelfError as error:
            yield Check("catalog", "warn", error.message, error.hint or "Mounts start from their last good state.")
            return
    if isinstance(issued, str):
        yield _clock(now() - datetime.fromisoformat(issued).timestamp())


def _clock(ahead_s: float) -> Check:
    found = f"{abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} the catalog's"
    fix = "Let NTP set the clocks: the feed's expiry and TLS certificates are judged by them."
    return judge("clock", abs(ahead_s) <= _CLOCKS_APART_S, found, fix)
