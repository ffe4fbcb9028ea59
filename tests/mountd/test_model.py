"""Random work on a mounted release and on a plain folder with the same files: every answer must be the same.

Hypothesis finds the shortest list of steps that shows a difference. Each transport and tier is mounted from an empty
cache, so that the steps run while files go from absent to partial to sealed; the tier that is materialised is so from
the first step on.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, rule, run_state_machine_as_test

from catalog.names import parse_release
from tests.support.catalog_server import RunningCatalog, catalog_process
from tests.support.publishing import Publisher
from tests.support.real_mount import RealMount
from tests.support.releases import pattern

REF = parse_release("datasets/model/files@1.0")
CHUNK = 4 << 20
SIZES = (0, 1, 4095, 4096, 4097, 65_537, CHUNK - 1, CHUNK, CHUNK + 1, 9 * CHUNK + 4099)
FILES = {
    **{f"sizes/{size}.bin": pattern(size, size) for size in SIZES},
    **{f"many/{number:03}/文件{number}.txt": pattern(100 + number, number) for number in range(40)},
    "deep/a/b/c/d/e.txt": b"deep",
    "deep.txt": b"beside a folder of nearly the same name",
    "deep-er/x": b"x",
}
MADE = {"release.json", "release.json.sig"}
"""What the mount adds to the release's own folder."""
PATHS = st.sampled_from(sorted(path for path in FILES if path.startswith("sizes/"))) | st.sampled_from(sorted(FILES))
FOLDERS = st.sampled_from(sorted({str(parent) for path in FILES for parent in Path(path).parents}))
STRANGERS = st.sampled_from(["none", "sizes/none", "deep/a/none", "deep.txt/below", "many/0", "sizes/" + "x" * 256])
OFFSETS = st.integers(0, 10 * CHUNK) | st.sampled_from([CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK - 4096])
LENGTHS = st.integers(1, 3 * CHUNK) | st.integers(0, 64)


class Both(RuleBasedStateMachine):
    """The same steps on ``mount`` and ``plain``, set by the test."""

    mount: Path
    plain: Path

    opened = Bundle("opened")
    mapped = Bundle("mapped")

    @initialize()
    def begin(self) -> None:
        self.cleanup = contextlib.ExitStack()

    def teardown(self) -> None:
        if hasattr(self, "cleanup"):
            self.cleanup.close()

    def same(self, step):
        """What ``step`` gives for the mount, having given the same for the plain folder (or the same errno)."""
        answers = []
        for root in (self.plain, self.mount):
            try:
                answers.append(step(root))
            except OSError as error:
                answers.append(error.errno)
        assert answers[0] == answers[1]
        return answers[1]

    @rule(target=opened, path=PATHS)
    def open_file(self, path: str):
        pair = tuple(os.open(root / path, os.O_RDONLY) for root in (self.plain, self.mount))
        for descriptor in pair:
            self.cleanup.callback(os.close, descriptor)
        return pair

    @rule(pair=opened, offset=OFFSETS, length=LENGTHS)
    def pread(self, pair, offset: int, length: int) -> None:
        offset = inside(pair, offset)
        assert os.pread(pair[0], length, offset) == os.pread(pair[1], length, offset)

    @rule(pair=opened, offset=OFFSETS, whence=st.sampled_from([os.SEEK_SET, os.SEEK_END]), length=LENGTHS)
    def seek_and_read(self, pair, offset: int, whence: int, length: int) -> None:
        offset = inside(pair, offset)
        if whence == os.SEEK_END:
            offset = -min(offset, os.fstat(pair[0]).st_size)
        places = [os.lseek(descriptor, offset, whence) for descriptor in pair]
        assert places[0] == places[1]
        assert os.read(pair[0], length) == os.read(pair[1], length)
        assert os.lseek(pair[0], 0, os.SEEK_CUR) == os.lseek(pair[1], 0, os.SEEK_CUR)

    @rule(path=PATHS)
    def read_whole(self, path: str) -> None:
        assert (self.plain / path).read_bytes() == (self.mount / path).read_bytes()

    @rule(pair=opened)
    def fstat(self, pair) -> None:
        assert attributes(os.fstat(pair[0])) == attributes(os.fstat(pair[1]))

    @rule(target=mapped, pair=opened)
    def map(self, pair):
        if os.fstat(pair[0]).st_size == 0:
            return None
        mappings = tuple(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) for descriptor in pair)
        for mapping in mappings:
            self.cleanup.callback(mapping.close)
        return mappings

    @rule(mappings=mapped, offset=OFFSETS, length=LENGTHS)
    def read_mapping(self, mappings, offset: int, length: int) -> None:
        if mappings is not None:
            offset %= len(mappings[0])
            assert mappings[0][offset : offset + length] == mappings[1][offset : offset + length]

    @rule(pair=opened, offset=OFFSETS, length=st.integers(1, 200_000))
    def sendfile(self, pair, offset: int, length: int) -> None:
        offset = inside(pair, offset)
        sent = []
        for descriptor in pair:
            here, there = socket.socketpair()
            with here, there:
                here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
                count = os.sendfile(here.fileno(), descriptor, offset, length)
                here.shutdown(socket.SHUT_WR)
                sent.append(read_all(there) if count else b"")
        shorter = min(map(len, sent))  # how much a socket takes at once is its own affair
        assert sent[0][:shorter] == sent[1][:shorter]
        assert bool(sent[0]) == bool(sent[1])

    @rule(pair=opened, offset=OFFSETS, length=st.integers(0, 100_000))
    def read_in_a_forked_child(self, pair, offset: int, length: int) -> None:
        offset = inside(pair, offset)
        answer, say = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                same = os.pread(pair[0], length, offset) == os.pread(pair[1], length, offset)
                os.write(say, b"same" if same else b"other")
            finally:
                os._exit(0)
        os.close(say)
        said = os.read(answer, 16)
        os.close(answer)
        os.waitpid(child, 0)
        assert said == b"same"

    @rule(pair=consumes(opened))
    def forget(self, pair) -> None:
        for descriptor in pair:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    @rule(path=PATHS | FOLDERS)
    def stat(self, path: str) -> None:
        self.same(lambda root: attributes((root / path).stat()))

    @rule(path=STRANGERS)
    def no_such_name(self, path: str) -> None:
        assert isinstance(self.same(lambda root: attributes((root / path).stat())), int)

    @rule(folder=FOLDERS)
    def listdir(self, folder: str) -> None:
        self.same(lambda root: sorted(set(os.listdir(root / folder)) - (MADE if folder == "." else set())))

    @rule(folder=FOLDERS)
    def scandir(self, folder: str) -> None:
        self.same(
            lambda root: {each.name: each.is_dir() for each in os.scandir(root / folder) if each.name not in MADE}
        )

    @rule(path=PATHS)
    def open_to_write(self, path: str) -> None:
        with pytest.raises(OSError, match="Read-only file system"):
            os.open(self.mount / path, os.O_RDWR)


def inside(pair: tuple[int, int], offset: int) -> int:
    """A place in the file made of any number, sometimes a little beyond its end."""
    return offset % (os.fstat(pair[0]).st_size + 100)


def attributes(found: os.stat_result) -> tuple[int, int, int]:
    """What must be equal: the kind, the size of a file, its time in seconds."""
    kind = stat.S_IFMT(found.st_mode)
    return (kind, found.st_size, int(found.st_mtime)) if kind == stat.S_IFREG else (kind, 0, 0)


def read_all(source: socket.socket) -> bytes:
    parts = []
    while part := source.recv(1 << 20):
        parts.append(part)
    return b"".join(parts)


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCatalog]:
    with catalog_process(tmp_path_factory.mktemp("catalog") / "data") as running:
        publisher = Publisher(running, tmp_path_factory.mktemp("uploads"))
        publisher.publish(REF, FILES)
        publisher.close()
        yield running


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    for path, content in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    for path in FILES:
        os.utime(folder / path, (946_684_800, 946_684_800))
    return folder


WAYS = {
    "passthrough": {"OPENSHELF_MATERIALISE": "no"},
    "served": {"OPENSHELF_PASSTHROUGH": "0", "OPENSHELF_MATERIALISE": "no"},
    "lazily served": {"OPENSHELF_PASSTHROUGH": "0", "OPENSHELF_MATERIALISE": "no", "OPENSHELF_FILL": "lazy"},
    "materialised": {},
    "libfuse": {},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_mounted_release_behaves_as_a_plain_folder(
    way: str, catalog: RunningCatalog, plain: Path, tmp_path: Path
) -> None:
    transport = "libfuse" if way == "libfuse" else "kernel"
    token = catalog.token("node", "node")
    with RealMount(tmp_path, catalog.url, token, transport=transport, **WAYS[way]) as mount:
        folder = mount.mountpoint / "datasets" / "model" / "files" / "1.0"
        if way == "materialised":
            for path, content in FILES.items():
                assert (folder / path).read_bytes() == content
            deadline = time.monotonic() + 30
            while not mount.status()["releases_materialised"]:
                assert time.monotonic() < deadline
                time.sleep(0.1)

        class Here(Both):
            pass

        Here.mount, Here.plain = folder, plain
        run_state_machine_as_test(
            Here,
            settings=settings(
                max_examples=15,
                stateful_step_count=40,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
        assert mount.status()["read_errors"] == 0
