"""Releases that went: kept with the feed's state until all is done about them, whoever dies meanwhile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from catalog.names import ReleaseRef, parse_release
from mountd.feed_state import FeedState, Gone

ONE = parse_release("datasets/belle/chat@1.0")
TWO = parse_release("datasets/belle/chat@2.0")
DIGEST = "ab" * 32


def event(serial: int, kind: str, ref: ReleaseRef, **more: Any) -> dict[str, Any]:
    place = {"epoch": 1, "serial": serial, "type": kind, "access": "public"}
    return {**place, "collection": str(ref.collection), "version": ref.version, "manifest_digest": DIGEST, **more}


def snapshot(serial: int, *refs: ReleaseRef) -> dict[str, Any]:
    releases = [event(serial, "published", ref) for ref in refs]
    return {"epoch": 1, "serial": serial, "releases": releases, "tags": []}


def test_a_withdrawal_is_known_until_it_is_forgotten_with_its_policy(tmp_path: Path) -> None:
    state = FeedState.open(tmp_path / "names.sqlite")
    state.apply([event(1, "published", ONE), event(2, "published", TWO)])
    state.apply([event(3, "withdrawn", ONE), event(4, "withdrawn", TWO, policy="revoke")])
    state.close()
    state = FeedState.open(tmp_path / "names.sqlite")
    assert state.gone() == [Gone(ONE, DIGEST, "drain"), Gone(TWO, DIGEST, "revoke")]
    done = replace(state.gone()[0], done="2026-03-01T10:00:00Z", objects=3, size_bytes=30)
    state.put_gone(done)
    assert state.gone()[0] == done
    state.forget_gone(ONE)
    assert [gone.ref for gone in state.gone()] == [TWO]
    state.close()


def test_a_withdrawal_of_what_was_never_listed_here_is_known_too(tmp_path: Path) -> None:
    state = FeedState.open(tmp_path / "names.sqlite")
    state.apply([event(1, "withdrawn", ONE, policy="shred")])
    assert state.gone() == [Gone(ONE, "", "drain")]
    state.close()


def test_what_a_snapshot_leaves_out_is_lost_and_what_comes_back_is_not(tmp_path: Path) -> None:
    state = FeedState.open(tmp_path / "names.sqlite")
    state.replace(snapshot(1, ONE, TWO))
    assert state.gone() == []
    state.replace(snapshot(2, TWO))
    assert state.gone() == [Gone(ONE, DIGEST, "lost")]
    state.replace(snapshot(3, ONE, TWO))
    assert state.gone() == []
    state.replace(snapshot(4))
    state.apply([event(5, "published", ONE)])
    assert [gone.ref for gone in state.gone()] == [TWO]
    state.close()
