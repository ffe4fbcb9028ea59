"""The client and its commands against a real catalog, with its objects in a local folder and in a real S3."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from catalog.client import Client, Conflict, DraftAbout, DraftFile, Forbidden, InvalidRequest, NotFound, Unauthorised
from catalog.client.pulling import PARTIAL, pull
from catalog.client.trusted import believe, published_release
from catalog.names import ReleaseRef, parse_release
from catalog.trust import Trust
from openshelf.__main__ import run
from tests.support.catalog_server import RunningCatalog, running_catalog
from tests.support.s3_server import BUCKET, S3Server

MIB = 1 << 20
MTIME_NS = 1_700_000_000_123_456_789
ABOUT = DraftAbout(
    created="2026-01-31T00:00:00Z",
    licence_expression="Apache-2.0",
    licence_evidence=[{"kind": "declared", "by": "lin"}],
    rows=3,
    title="对话 Chat",
)


def noise(size: int, seed: str) -> bytes:
    return hashlib.shake_128(seed.encode()).digest(size)


CONTENTS: dict[str, bytes] = {
    "README.md": b"# Chat\n",
    "bin/run.sh": b"#!/bin/sh\n",
    "data/big.bin": noise(21 * MIB + 3, "big"),
    "data/copy-of-readme.md": b"# Chat\n",
    "data/empty.txt": b"",
    "data/middle.bin": noise(MIB + 1, "middle"),
    "诗/静夜思.txt": "床前明月光".encode(),
    **{f"small/{number:03}.bin": noise(number * 997, f"s{number}") for number in range(60)},
}


@dataclass
class Shelf:
    """A running catalog, its people's tokens, and a folder with the files of a release."""

    catalog: RunningCatalog
    tokens: dict[str, str]
    source: Path
    put_raw: Callable[[str, bytes], None]
    """Writes bytes over the stored object of this digest, past the catalog."""

    def overwrite(self, content: bytes, other: bytes) -> None:
        """Let the store hold ``other`` as the object whose right content is ``content``."""
        self.put_raw(hashlib.sha256(content).hexdigest(), other)

    def client(self, role: str) -> Client:
        return Client(self.catalog.url, self.tokens[role], timeout_s=20)

    def sealed(self, name: str) -> ReleaseRef:
        """A sealed draft ``datasets/test/NAME@1.0``, uploaded by the curator lin."""
        ref = parse_release(f"datasets/test/{name}@1.0")
        digests = {path: hashlib.sha256(content).hexdigest() for path, content in CONTENTS.items()}
        with self.client("curator") as client:
            client.create_draft(ref, ABOUT)
            missing = client.missing(ref, sorted(set(digests.values())))
            for path, digest in digests.items():
                if digest in missing:
                    client.upload(ref, self.source / path, sha256=digest)
            files = [
                DraftFile(path, digest, MTIME_NS, 0o555 if path.startswith("bin/") else 0o444)
                for path, digest in digests.items()
            ]
            assert client.seal(ref, files).state == "sealed"
        return ref

    def published(self, name: str) -> ReleaseRef:
        """The same, published."""
        ref = self.sealed(name)
        with self.client("curator") as curator, self.client("auditor") as auditor:
            assert curator.submit(ref).state == "submitted"
            assert auditor.approve(ref, "read it").state == "approved"
            assert curator.publish(ref).state == "published"
        return ref


@pytest.fixture(scope="module", params=["local", "s3"])
def shelf(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shelf]:
    home = tmp_path_factory.mktemp(f"shelf-{request.param}")
    source = home / "source"
    for path, content in CONTENTS.items():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_bytes(content)
    objects = None

    def put_raw(digest: str, content: bytes) -> None:
        path = f"sha256/{digest[:2]}/{digest[2:4]}/{digest}"
        if objects is None:
            _rewrite(home / "catalog" / "objects" / path, content)
        else:
            client = server.client()
            client.put_object(Bucket=BUCKET, Key=f"{home.name}/{path}", Body=content)
            client.close()

    with contextlib.ExitStack() as stack:
        if request.param == "s3":
            server: S3Server = request.getfixturevalue("s3_server")
            objects = f"s3://{BUCKET}/{home.name}"
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            for name, value in server.environment().items():
                patch.setenv(name, value)
        catalog = stack.enter_context(running_catalog(home / "catalog", objects))
        people = {"curator": "lin", "auditor": "wang", "reader": "chen", "node": "node-1"}
        tokens = {role: catalog.token(name, role) for role, name in people.items()}
        tokens["administrator"] = catalog.admin_token.strip()
        tokens["other curator"] = catalog.token("zhao", "curator")
        yield Shelf(catalog, tokens, source, put_raw)


@pytest.fixture(scope="module")
def release(shelf: Shelf) -> ReleaseRef:
    """One published release that tests only read."""
    return shelf.published("read-only")


Command = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def command(shelf: Shelf, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Run ``openshelf`` as somebody; exit code, JSON of stdout (or its text), stderr."""

    def call(role: str, *arguments: object) -> tuple[int, Any, str]:
        monkeypatch.setenv("OPENSHELF_CATALOG", shelf.catalog.url)
        monkeypatch.setenv("OPENSHELF_TOKEN", shelf.tokens.get(role, role))
        capfd.readouterr()
        code = run([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return code, json.loads(out) if "--json" in arguments and out else out, err

    return call


def test_a_draft_becomes_a_published_release_and_is_read_back(shelf: Shelf, release: ReleaseRef) -> None:
    with shelf.client("reader") as client:
        info = client.release(release)
        assert (info.state, info.files, info.rows) == ("published", len(CONTENTS), 3)
        assert info.size_bytes == sum(map(len, CONTENTS.values()))
        assert (info.uploader, info.submitter, info.approver) == ("lin", "lin", "wang")
        assert info.licence is not None
        assert info.licence["expression"] == "Apache-2.0"
        listed = {file.path: (file.size, file.sha256) for file in client.files(release)}
    assert listed == {path: (len(body), hashlib.sha256(body).hexdigest()) for path, body in CONTENTS.items()}


def test_uploading_again_what_is_there_is_not_asked_for(shelf: Shelf, release: ReleaseRef) -> None:
    ref = parse_release("datasets/test/again@1.0")
    digests = [hashlib.sha256(content).hexdigest() for content in CONTENTS.values()]
    with shelf.client("curator") as client:
        client.create_draft(ref, ABOUT)
        assert client.missing(ref, [*digests, "00" * 32]) == {"00" * 32}


def test_a_wrong_digest_is_refused_and_the_right_bytes_are_still_missing(shelf: Shelf, tmp_path: Path) -> None:
    ref = parse_release("datasets/test/wrong@1.0")
    path = tmp_path / "file"
    path.write_bytes(noise(12 * MIB, "wrong"))
    right = hashlib.sha256(path.read_bytes()).hexdigest()
    claimed = "12" * 32
    with shelf.client("curator") as client:
        client.create_draft(ref, ABOUT)
        with pytest.raises(InvalidRequest) as caught:
            client.upload(ref, path, sha256=claimed)
        assert caught.value.code == "digest_mismatch"
        assert client.missing(ref, [right, claimed]) == {right, claimed}
        client.upload(ref, path)
        assert client.missing(ref, [right]) == set()


def test_another_curator_can_neither_touch_the_draft_nor_claim_its_objects(shelf: Shelf) -> None:
    ref = shelf.sealed("mine")
    secret = hashlib.sha256(CONTENTS["data/big.bin"]).hexdigest()
    with shelf.client("other curator") as client:
        with pytest.raises(Conflict):
            client.create_draft(ref, ABOUT)
        own = parse_release("datasets/other/thing@1.0")
        client.create_draft(own, ABOUT)
        with pytest.raises((Forbidden, NotFound)):
            client.upload(ref, shelf.source / "README.md")
    unpublished = noise(5000, "unpublished")
    with shelf.client("curator") as lin, shelf.client("other curator") as zhao:
        mine = parse_release("datasets/test/hidden@1.0")
        lin.create_draft(mine, ABOUT)
        path = shelf.source.parent / "unpublished.bin"
        path.write_bytes(unpublished)
        digest = lin.upload(mine, path).sha256
        assert zhao.missing(own, [digest]) == {digest}
        with pytest.raises(InvalidRequest):
            zhao.seal(own, [DraftFile("stolen.bin", digest, 0)])
        zhao.object_hosts = frozenset()
        with pytest.raises(NotFound):
            zhao.read_object(digest, 0, 10)
    assert secret


def test_reasons_and_states_travel(shelf: Shelf) -> None:
    ref = shelf.sealed("reviewed")
    with shelf.client("curator") as curator, shelf.client("auditor") as auditor:
        curator.submit(ref)
        returned = auditor.return_to_draft(ref, "mask the plates")
        assert (returned.state, returned.reason) == ("draft", "mask the plates")
        shelf.sealed("reviewed")
        curator.submit(ref)
        rejected = auditor.reject(ref, "no evidence")
        assert (rejected.state, rejected.reason) == ("rejected", "no evidence")
        with pytest.raises(Conflict):
            curator.publish(ref)
        shelf.sealed("reviewed")


def test_attachments_are_for_reviewers_only(shelf: Shelf, tmp_path: Path) -> None:
    ref = parse_release("datasets/test/attached@1.0")
    (tmp_path / "report.md").write_text("# Report\n")
    with shelf.client("curator") as client:
        client.create_draft(ref, ABOUT)
        client.attach(ref, "report.md", tmp_path / "report.md", "text/markdown")
        assert [(item.name, item.size_bytes) for item in client.attachments(ref)] == [("report.md", 9)]
        assert client.attachment(ref, "report.md") == b"# Report\n"
    with shelf.client("reader") as client, pytest.raises((Forbidden, NotFound)):
        client.attachment(ref, "report.md")


def test_ranges_of_objects_are_read_through_the_signed_hosts_only(shelf: Shelf, release: ReleaseRef) -> None:
    content = CONTENTS["data/big.bin"]
    digest = hashlib.sha256(content).hexdigest()
    with shelf.client("node") as client:
        believe(client, shelf.tokens["node"])
        assert client.read_object(digest, 5 * MIB - 7, 4 * MIB) == content[5 * MIB - 7 : 9 * MIB - 7]
        buffer = bytearray(100)
        assert client.read_object_into(digest, len(content) - 100, memoryview(buffer)) == 100
        assert bytes(buffer) == content[-100:]
        with pytest.raises(NotFound):
            client.read_object("00" * 32, 0, 1)


def test_a_node_follows_the_feed_of_a_real_catalog(shelf: Shelf, release: ReleaseRef, tmp_path: Path) -> None:
    trust = Trust(tmp_path / "trust.json")
    with shelf.client("node") as client, shelf.client("curator") as curator:
        trust.bootstrap(client, token=shelf.tokens["node"])
        trust.accept_head(client.feed_head())
        snapshot = trust.accept_snapshot(client.feed_snapshot())
        assert {"collection": str(release.collection), "version": "1.0"}.items() <= next(
            item for item in snapshot["releases"] if item["collection"] == str(release.collection)
        ).items()
        assert client.feed_events(trust.serial) == []
        curator.tag(release, "stable")
        curator.untag(release.collection, "stable")
        events = trust.accept_events(client.feed_events(trust.serial, wait_s=5))
        assert [(event["type"], event["tag"]) for event in events] == [("tagged", "stable"), ("untagged", "stable")]
        assert trust.accept_head(client.feed_head())["serial"] == trust.serial


def test_a_wrong_or_missing_token_is_said_so(shelf: Shelf) -> None:
    from catalog.token_format import make_token

    wrong, _ = make_token(bytes(32))
    for token in (wrong, None, "not-a-token"):
        with Client(shelf.catalog.url, token) as client, pytest.raises(Unauthorised) as caught:
            client.whoami()
        assert wrong not in caught.value.line()


def as_a_tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_pull_brings_every_file_with_mode_and_time_and_the_signed_record(
    shelf: Shelf, release: ReleaseRef, command: Command, tmp_path: Path
) -> None:
    code, done, _ = command("reader", "pull", release, tmp_path / "out", "--json")
    assert code == 0
    assert (done["files"], done["fetched_bytes"]) == (len(CONTENTS), sum(map(len, CONTENTS.values())))
    tree = as_a_tree(tmp_path / "out")
    record = json.loads(tree.pop("release.json"))
    signature = json.loads(tree.pop("release.json.sig"))
    assert tree == CONTENTS
    assert (record["collection"], record["version"]) == (str(release.collection), "1.0")
    assert set(signature) == {"signature", "key"}
    for path in CONTENTS:
        there = (tmp_path / "out" / path).stat()
        assert stat.S_IMODE(there.st_mode) == (0o555 if path.startswith("bin/") else 0o444)
        assert there.st_mtime_ns == MTIME_NS


def test_a_pull_again_fetches_nothing_and_repairs_what_is_gone(
    shelf: Shelf, release: ReleaseRef, command: Command, tmp_path: Path
) -> None:
    command("reader", "pull", release, tmp_path / "out")
    assert command("reader", "pull", release, tmp_path / "out", "--json")[1]["fetched_bytes"] == 0
    (tmp_path / "out" / "data" / "middle.bin").unlink()
    assert command("reader", "pull", release, tmp_path / "out", "--json")[1]["fetched_bytes"] == MIB + 1
    assert command("reader", "verify", tmp_path / "out")[0] == 0


def test_an_interrupted_pull_goes_on_with_the_chunks_that_it_has(
    shelf: Shelf, release: ReleaseRef, tmp_path: Path
) -> None:
    class Stop(Exception):
        pass

    class Interrupting:
        total = 0

        def advance(self, amount: int) -> None:
            self.total += amount
            if self.total > 16 * MIB:
                raise Stop

        def describe(self, text: str) -> None:
            raise AssertionError(text)

    token = shelf.tokens["reader"]
    with shelf.client("reader") as client:
        trusted = published_release(client, str(release), believe(client, token))
        with pytest.raises(Stop):
            pull(client, trusted, tmp_path / "out", Interrupting())
        assert not (tmp_path / "out" / "release.json").exists()
        part = next((tmp_path / "out" / PARTIAL).glob("*.part"))
        with part.open("r+b") as file:
            file.write(b"damage!")
        done = pull(client, trusted, tmp_path / "out")
    total = sum(map(len, CONTENTS.values()))
    assert 4 * MIB <= done.fetched_bytes < total
    tree = as_a_tree(tmp_path / "out")
    assert {path: body for path, body in tree.items() if not path.startswith("release.json")} == CONTENTS


def test_pull_refuses_a_folder_that_holds_something_else(
    shelf: Shelf, release: ReleaseRef, command: Command, tmp_path: Path
) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("mine")
    code, _, err = command("reader", "pull", release, tmp_path / "thesis")
    assert code == 1
    assert "not empty" in err
    other = shelf.published("another")
    assert command("reader", "pull", release, tmp_path / "out")[0] == 0
    before = as_a_tree(tmp_path / "out")
    code, _, err = command("reader", "pull", other, tmp_path / "out")
    assert code == 1
    assert "another release" in err
    assert as_a_tree(tmp_path / "out") == before
    assert as_a_tree(tmp_path / "thesis") == {"chapter.tex": b"mine"}


def test_pull_does_not_follow_a_link_out_of_its_folder(
    shelf: Shelf, release: ReleaseRef, command: Command, tmp_path: Path
) -> None:
    command("reader", "pull", release, tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "data")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out" / "data").symlink_to(tmp_path / "elsewhere")
    code, _, err = command("reader", "pull", release, tmp_path / "out")
    assert code == 1
    assert "not a plain folder" in err
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_pull_needs_a_key_that_the_token_or_the_flag_vouches_for(
    shelf: Shelf, release: ReleaseRef, command: Command, tmp_path: Path
) -> None:
    code, _, err = command("reader", "pull", release, tmp_path / "out", "--catalog-key", "0" * 64)
    assert code == 1
    assert "vouch" in err
    assert not (tmp_path / "out").exists()
    with shelf.client("reader") as client:
        fingerprint = hashlib.sha256(client.public_key()).hexdigest()
    assert command("reader", "pull", release, tmp_path / "out", "--catalog-key", fingerprint)[0] == 0


@pytest.mark.parametrize(
    ("spoil", "path", "problem"),
    [
        (lambda folder: _rewrite(folder / "data/middle.bin", b"x" * (MIB + 1)), "data/middle.bin", "other bytes"),
        (lambda folder: _rewrite(folder / "README.md", b"short"), "README.md", "bytes instead"),
        (lambda folder: (folder / "small/001.bin").unlink(), "small/001.bin", "missing"),
        (lambda folder: (folder / "more.txt").write_text("x"), "more.txt", "not in the release"),
        (lambda folder: _link(folder / "README.md", folder / "data/copy-of-readme.md"), "README.md", "cannot be read"),
    ],
)
def test_verify_names_what_is_not_as_signed(
    shelf: Shelf,
    release: ReleaseRef,
    command: Command,
    tmp_path: Path,
    spoil: Callable[[Path], object],
    path: str,
    problem: str,
) -> None:
    folder = tmp_path / "out"
    command("reader", "pull", release, folder)
    code, found, _ = command("reader", "verify", folder, "--json")
    assert (code, found["ok"], found["bad"], found["files"]) == (0, True, [], len(CONTENTS))
    spoil(folder)
    code, found, err = command("reader", "verify", folder, "--json")
    assert code == 1
    assert [item["path"] for item in found["bad"]] == [path]
    assert problem in found["bad"][0]["problem"]
    assert path in err


def _rewrite(path: Path, content: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(content)


def _link(path: Path, target: Path) -> None:
    path.unlink()
    path.symlink_to(target)


def test_verify_refuses_a_record_that_was_changed(
    shelf: Shelf, release: ReleaseRef, command: Command, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    command("reader", "pull", release, folder)
    record = folder / "release.json"
    _rewrite(record, record.read_bytes().replace(b"Apache-2.0", b"MIT-000000"))
    code, _, err = command("reader", "verify", folder)
    assert code == 1
    assert "signature" in err
    record.unlink()
    assert command("reader", "verify", folder)[0] == 1


def test_verify_by_name_reads_what_the_catalog_delivers(shelf: Shelf, release: ReleaseRef, command: Command) -> None:
    code, found, _ = command("reader", "verify", release, "--json")
    assert (code, found["ok"], found["files"]) == (0, True, len(CONTENTS))


def test_show_prints_state_digest_licence_tags_and_files(shelf: Shelf, release: ReleaseRef, command: Command) -> None:
    assert command("curator", "tag", release, "latest")[0] == 0
    code, shown, _ = command("reader", "show", f"{release.collection}@latest", "--json")
    assert code == 0
    assert (shown["release"], shown["state"], shown["tags"]) == (str(release), "published", ["latest"])
    assert len(shown["manifest_digest"]) == 64
    assert {file["path"]: file["sha256"] for file in shown["files"]}["README.md"] == hashlib.sha256(
        b"# Chat\n"
    ).hexdigest()
    code, text, _ = command("reader", "show", release)
    assert code == 0
    assert "published" in text
    assert "诗/静夜思.txt" in text
    assert command("curator", "tag", "--delete", release.collection, "latest")[0] == 0
    assert command("reader", "show", f"{release.collection}@latest")[0] == 1


def test_a_draft_is_shown_without_files(shelf: Shelf, command: Command) -> None:
    ref = parse_release("datasets/test/begun@1.0")
    with shelf.client("curator") as client:
        client.create_draft(ref, ABOUT)
    code, shown, _ = command("curator", "show", ref, "--json")
    assert (code, shown["state"], shown["files"]) == (0, "draft", None)


def test_the_review_goes_through_the_command_line(shelf: Shelf, command: Command, tmp_path: Path) -> None:
    ref = shelf.sealed("by-command")
    assert command("curator", "submit", ref, "--json")[1]["state"] == "submitted"
    code, _, err = command("curator", "approve", ref)
    assert code == 1
    assert err.count("\n") == 1
    assert command("auditor", "reject", ref, "--changes", "--reason", "again", "--json")[1]["state"] == "draft"
    shelf.sealed("by-command")
    command("curator", "submit", ref)
    code, _, err = command("auditor", "approve", ref, "--digest", "ab" * 32)
    assert (code, err.count("\n")) == (1, 1)
    assert "its manifest is another" in err
    approved = command("auditor", "approve", ref, "--note", "fine", "--json")[1]
    assert approved["state"] == "approved"
    assert approved["manifest_digest"] == command("auditor", "show", ref, "--json")[1]["manifest_digest"]
    assert command("curator", "publish", ref, "--json")[1]["state"] == "published"
    assert command("reader", "pull", ref, tmp_path / "out")[0] == 0
    code, _, err = command("administrator", "withdraw", ref, "--reason", "Take Down")
    assert code == 2
    assert err == (
        "openshelf: 'Take Down' is not a reason's code. Write a short code of lower-case letters, digits, '_', '-' and"
        " '.', e.g. personal_data, licence, court_order, takedown; words go into --note.\n"
    )
    withdrawn = command("administrator", "withdraw", ref, "--reason", "takedown", "--note", "asked", "--json")[1]
    assert (withdrawn["state"], withdrawn["reason"]) == ("withdrawn", "takedown")
    code, _, err = command("reader", "pull", ref, tmp_path / "later")
    assert code == 1
    assert "withdrawn" in err


def test_search_finds_the_published_by_title(shelf: Shelf, release: ReleaseRef, command: Command) -> None:
    code, found, _ = command("reader", "search", "对话", "--json")
    assert code == 0
    assert str(release.collection) in [item["collection"] for item in found["collections"]]
    code, found, _ = command("reader", "search", "nothing-is-called-so", "--json")
    assert (code, found) == (0, {"collections": []})


def test_tokens_are_made_listed_and_revoked(shelf: Shelf, command: Command) -> None:
    made = command("administrator", "token", "create", "--role", "reader", "--name", "sun", "--json")[1]
    assert made["token"].startswith("osk_")
    assert command(made["token"], "search", "x")[0] == 0
    listed = command("administrator", "token", "list", "--json")[1]["tokens"]
    mine = next(token for token in listed if token["id"] == str(made["id"]))
    assert (mine["name"], mine["role"], mine["revoked"]) == ("sun", "reader", False)
    assert made["token"] not in json.dumps(listed)
    assert command("administrator", "token", "revoke", made["id"])[0] == 0
    code, _, err = command(made["token"], "search", "x")
    assert code == 1
    assert made["token"] not in err
    expired = command(
        "administrator", "token", "create", "--role", "reader", "--name", "sun", "--expires", "2020-01-01", "--json"
    )
    if expired[0] == 0:
        assert command(expired[1]["token"], "search", "x")[0] == 1
    assert command("curator", "token", "list")[0] == 1
    code, out, err = command("administrator", "token", "create", "--role", "reader", "--name", "sun")
    assert out.startswith("osk_")
    assert "osk_" not in err


def test_wrong_usage_is_exit_code_two(command: Command, tmp_path: Path) -> None:
    for arguments in (
        ["show", "datasets/a/b"],
        ["pull", "../x@1", tmp_path],
        ["tag", "datasets/a/b@1", "../x"],
        ["verify", "neither/a/folder"],
        ["token", "create", "--role", "king", "--name", "x"],
        ["token", "revoke", "../1"],
        ["approve", "datasets/a/b@1", "--digest", "abc"],
        ["reject", "datasets/a/b@1"],
    ):
        assert command("reader", *arguments)[0] == 2


def test_a_damaged_object_stops_a_pull_naming_the_file_and_keeps_the_rest(
    shelf: Shelf, release: ReleaseRef, command: Command, tmp_path: Path
) -> None:
    content = CONTENTS["data/middle.bin"]
    shelf.overwrite(content, content[:-1] + bytes([content[-1] ^ 1]))
    try:
        code, _, err = command("reader", "pull", release, tmp_path / "out")
        assert code == 1
        assert "data/middle.bin" in err
        assert not (tmp_path / "out" / "data" / "middle.bin").exists()
        assert not (tmp_path / "out" / "release.json").exists()
        code, found, _ = command("reader", "verify", release, "--json")
        assert code == 1
        assert "data/middle.bin" in [item["path"] for item in found["bad"]]
    finally:
        shelf.overwrite(content, content)
    assert command("reader", "pull", release, tmp_path / "out")[0] == 0
