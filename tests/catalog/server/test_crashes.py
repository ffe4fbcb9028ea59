"""The catalog dies at the worst moment, or its disk is full: nothing is lost, and the same call succeeds afterwards."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3

from catalog.names import parse_release
from openshelf.units import MIB
from tests.support.catalog_api import Api, about_of, listing_of, release_path
from tests.support.catalog_server import catalog_process, running_catalog
from tests.support.releases import make_release

REF = "datasets/crash/corpus@1.0"


def noise(size: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(size)


def sizes_in(folder: Path) -> list[int]:
    found = []
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # renamed into place meanwhile
            found.append(path.stat().st_size)
    return found


def wait_for_growth(incoming: Path, thread: threading.Thread | None = None) -> None:
    """Return once over a mebibyte of something is being received or built there."""
    deadline = time.monotonic() + 30
    while not any(size > MIB for size in sizes_in(incoming)):
        assert time.monotonic() < deadline and (thread is None or thread.is_alive())
        time.sleep(0.002)


def test_killed_in_the_middle_of_an_upload_and_then_of_a_seal_each_is_repeated(tmp_path: Path) -> None:
    files = {f"{number:05d}.txt": noise(MIB, number) for number in range(32)} | {"large.bin": noise(4 * MIB, 100)}
    large, first = files["large.bin"], files["00000.txt"]
    digests = [hashlib.sha256(data).hexdigest() for data in files.values()]
    expected = make_release(parse_release(REF), files, tmp_path).digest
    listing = listing_of(files)
    incoming = tmp_path / "data" / "objects" / "incoming"

    with catalog_process(tmp_path / "data") as catalog:
        token = catalog.token("alice", "curator")
        with Api(catalog.url, token) as alice:
            alice.ok("PUT", release_path(REF), about_of())
            assert alice.put_object(REF, first).status == 200
        host, port = catalog.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            head = (
                f"PUT {release_path(REF)}/objects/{hashlib.sha256(large).hexdigest()} HTTP/1.1\r\nHost: x\r\n"
                f"Authorization: Bearer {token}\r\nContent-Length: {len(large)}\r\n\r\n"
            )
            connection.sendall(head.encode() + large[: 3 * MIB])
            wait_for_growth(incoming)
            catalog.kill()
    assert list(incoming.iterdir()) != []

    with catalog_process(tmp_path / "data") as catalog, Api(catalog.url, token) as alice:
        assert list(incoming.iterdir()) == []
        missing = alice.ok("POST", release_path(REF, "missing"), {"digests": digests})["missing"]
        assert missing == digests[1:]
        for data in files.values():
            assert alice.put_object(REF, data).status == 200
        outcome: list[int] = []

        def seal() -> None:
            with contextlib.suppress(urllib3.exceptions.HTTPError):
                outcome.append(alice.request("POST", release_path(REF, "seal"), body=listing).status)

        thread = threading.Thread(target=seal)
        thread.start()
        wait_for_growth(incoming, thread)
        catalog.kill()
        thread.join()
    assert outcome == []

    with catalog_process(tmp_path / "data") as catalog, Api(catalog.url, token) as alice:
        assert alice.ok("GET", release_path(REF))["state"] == "draft"
        assert alice.ok("POST", release_path(REF, "missing"), {"digests": digests})["missing"] == []
        sealed = alice.request("POST", release_path(REF, "seal"), body=listing)
        assert sealed.status == 200, sealed.data
        assert sealed.json()["manifest_digest"] == expected
        with Api(catalog.url, catalog.admin_token) as administrator:
            assert administrator.ok("GET", "/v1/ledger/verification")["intact"] is True
    assert list((tmp_path / "data" / "incoming").iterdir()) == list(incoming.iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_loses_nothing_and_reading_goes_on(small_disk: Path, tmp_path: Path) -> None:
    kept = noise(2 * MIB, 3)
    with (
        catalog_process(small_disk / "data", log=tmp_path / "log") as catalog,
        Api(catalog.url, catalog.admin_token) as administrator,
        Api(catalog.url, catalog.token("alice", "curator")) as alice,
        Api(catalog.url, catalog.token("bob", "auditor")) as bob,
    ):
        alice.draft(REF, {"kept": kept})
        alice.ok("POST", release_path(REF, "submit"))
        bob.ok("POST", release_path(REF, "approve"))
        bob.ok("POST", release_path(REF, "publish"))
        second = REF.replace("@1.0", "@2.0")
        alice.ok("PUT", release_path(second), about_of())
        large = alice.put_object(second, noise(40 * MIB, 4))
        assert (large.status, large.json()["code"]) == (507, "store_full")
        assert list((small_disk / "data" / "objects" / "incoming").iterdir()) == []
        assert alice.put_object(second, b"small").status == 200

        filler = small_disk / "filler"
        with filler.open("wb") as sink, pytest.raises(OSError, match="No space"):
            while True:
                sink.write(bytes(MIB))
                sink.flush()
        for body in (alice.put_object(second, noise(MIB, 5)), alice.seal(second, {"small": b"small"})):
            assert body.status == 507, body.data
        changed = administrator.request("POST", "/v1/tokens", json_body={"name": "x" * 60, "role": "reader"})
        assert changed.status in (201, 507), changed.data
        digest = hashlib.sha256(kept).hexdigest()
        assert alice.get(f"/v1/objects/{digest}").data == kept
        assert alice.ok("GET", release_path(REF))["state"] == "published"
        assert alice.ok("GET", "/v1/feed/head")["document"]["serial"] == 1

        filler.unlink()
        assert alice.seal(second, {"small": b"small"}).json()["state"] == "sealed"
        assert administrator.ok("GET", "/v1/ledger/verification")["intact"] is True
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_a_catalog_starts_again_with_what_it_had(tmp_path: Path) -> None:
    with running_catalog(tmp_path / "data") as catalog:
        token = catalog.token("alice", "curator")
        with Api(catalog.url, token) as alice:
            sealed = alice.draft(REF, {"a": b"1"})
    first_token = (tmp_path / "data" / "admin.token").read_text()
    shutil.rmtree(tmp_path / "data" / "manifests")
    with running_catalog(tmp_path / "data") as catalog, Api(catalog.url, token) as alice:
        assert catalog.admin_token == first_token
        assert alice.ok("GET", release_path(REF)) == sealed
        assert [item["path"] for item in alice.ok("GET", release_path(REF, "files"))["files"]] == ["a"]
