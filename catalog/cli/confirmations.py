"""How far a withdrawal has come, for people: which nodes have carried it out and who still holds files."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from catalog.client import Client
from catalog.names import ReleaseRef
from openshelf.console import progress
from openshelf.errors import OpenshelfError
from openshelf.units import format_size

_ASK_EVERY_S = 1.0


class NotCarriedOut(OpenshelfError):
    """Nodes have not confirmed, or jobs still hold files."""


def confirmation_lines(found: Mapping[str, Any]) -> list[str]:
    """One line a node, and one for each process that holds files."""
    told, missing = found["confirmations"], found["outstanding"]
    lines = [f"{found['release']} was withdrawn {found['withdrawn']}: {len(told)} nodes have confirmed, {_rest(found)}"]
    for each in told:
        files = f"{each['objects_removed']} files removed ({format_size(each['bytes_removed'])})"
        held = f", {each['open_files']} still open" if each["open_files"] else ""
        lines.append(f"  {each['node']}  {each['done']}  {each['policy']}, {files}{held}")
        lines += [
            f"    pid {holder['pid']}, uid {holder['uid']}, {_job(holder['job'])}: {holder['files']} files"
            for holder in each["holders"]
        ]
    for each in missing:
        state = "has not confirmed" if each["lives"] else "is unmounted or silent"
        used = ", has used it" if each["used"] else ""
        lines.append(f"  {each['node']}  {state}, last heard of {each['last_seen']}{used}")
    return lines


def _job(job: Mapping[str, Any]) -> str:
    return f"{job['kind']}:{job['name']}" if job["name"] else str(job["kind"])


def _rest(found: Mapping[str, Any]) -> str:
    waiting, holding = _waiting(found), _holding(found)
    return f"{waiting} have not, files are still open on {holding}"


def _waiting(found: Mapping[str, Any]) -> int:
    return sum(each["lives"] for each in found["outstanding"])


def _holding(found: Mapping[str, Any]) -> int:
    return sum(each["open_files"] > 0 for each in found["confirmations"])


def wait_until_carried_out(client: Client, release: ReleaseRef, within_s: float, *, show: bool) -> dict[str, Any]:
    """Wait until every node that lives has confirmed and nobody holds a file; what the catalog then says.

    :class:`NotCarriedOut` names what is missing when the time is over.
    """
    deadline = time.monotonic() + within_s
    with progress(f"withdrawing {release}", None, unit="nodes", enabled=show) as bar:
        while True:
            found = client.confirmations(release)
            if not _waiting(found) and not _holding(found):
                return found
            bar.describe(f"withdrawing {release}: {_rest(found)}")
            if time.monotonic() >= deadline:
                raise NotCarriedOut(
                    "not_carried_out",
                    f"{release} is withdrawn, but after {within_s:.0f} s not everywhere: {_rest(found)}",
                    f"See openshelf usage --withdrawal {release}",
                )
            time.sleep(min(_ASK_EVERY_S, max(0.0, deadline - time.monotonic())))
