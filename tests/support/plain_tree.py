"""A plain folder as the data side of a mount: names and bytes straight from disk, sealed or not as the test says."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mountd.interfaces import ROOT_ID, Facts, Invalidation, Kernel, MountConfig, Node, Opened, Totals, Work


class PlainTree:
    """The folder ``source``, read once; node ids by sorted path, so that every worker finds the same."""

    def __init__(self, source: Path, *, ttl_s: float = 3600.0) -> None:
        self.source = source
        self._paths: dict[int, Path] = {ROOT_ID: source}
        self._nodes: dict[int, Node] = {}
        self._children: dict[int, list[tuple[bytes, Node]]] = {}
        self._places: dict[int, tuple[int, bytes]] = {}
        self._by_name: dict[tuple[int, bytes], Node] = {}
        self._callbacks: list[Callable[[Invalidation], None]] = []
        self._ttl_s = ttl_s
        self._next = ROOT_ID
        self._add(source, None)

    def _add(self, path: Path, parent: int | None) -> Node:
        nodeid = self._next
        self._next += 1
        status = path.lstat()
        kind = "link" if path.is_symlink() else "dir" if path.is_dir() else "file"
        node = Node(
            nodeid=nodeid,
            ino=nodeid + 1000,
            kind=kind,  # type: ignore[arg-type]
            mode=0o555 if kind == "dir" else 0o777 if kind == "link" else 0o444,
            size=0 if kind == "dir" else status.st_size,
            mtime_ns=status.st_mtime_ns,
            ttl_s=self._ttl_s,
        )
        self._nodes[nodeid] = node
        self._paths[nodeid] = path
        if parent is not None:
            name = os.fsencode(path.name)
            self._places[nodeid] = (parent, name)
            self._by_name[parent, name] = node
        if kind == "dir":
            names = sorted(path.iterdir(), key=lambda child: os.fsencode(child.name))
            self._children[nodeid] = [(os.fsencode(child.name), self._add(child, nodeid)) for child in names]
        return node

    def path(self, nodeid: int) -> Path:
        return self._paths[nodeid]

    def node(self, nodeid: int) -> Node | None:
        return self._nodes.get(nodeid)

    def lookup(self, parent_id: int, name: bytes) -> Node | None:
        return self._by_name.get((parent_id, name))

    def glance(self, parent_id: int, name: bytes) -> Node | None:
        return self.lookup(parent_id, name)

    def run(self, nodeid: int, position: int) -> None:
        return None

    def is_fixed(self, nodeid: int) -> bool:
        return nodeid in self._children and self._ttl_s > 60

    def following(self, parent_id: int, nodeid: int, most: int) -> None:
        return None

    def children(self, nodeid: int) -> Sequence[tuple[bytes, Node]]:
        return self._children.get(nodeid, [])

    def place(self, nodeid: int) -> tuple[int, bytes] | None:
        return self._places.get(nodeid)

    def readlink(self, nodeid: int) -> bytes | None:
        node = self._nodes.get(nodeid)
        return os.fsencode(os.readlink(self._paths[nodeid])) if node is not None and node.kind == "link" else None

    def licence(self, release: object) -> str | None:
        return None

    def totals(self) -> Totals:
        files = [node for node in self._nodes.values() if node.kind == "file"]
        return Totals(len(files), sum(node.size for node in files))

    def subscribe(self, callback: Callable[[Invalidation], None]) -> None:
        self._callbacks.append(callback)

    def hide(self, parent_id: int, name: bytes) -> None:
        """Withdraw a name, as the feed would."""
        self._by_name.pop((parent_id, name))
        self._children[parent_id] = [entry for entry in self._children[parent_id] if entry[0] != name]
        for callback in self._callbacks:
            callback(Invalidation(parent_id, name))


class PlainHandle:
    def __init__(self, reader: PlainReader, node: Node) -> None:
        self._reader = reader
        self._node = node
        self._descriptor = os.open(reader.tree.path(node.nodeid), os.O_RDONLY | os.O_CLOEXEC)

    def sealed_fd(self) -> int | None:
        return self._descriptor if self._reader.is_sealed(self._node) else None

    def locate(self, offset: int, length: int) -> tuple[int, int] | None:
        self._reader.slow_down(self._node)
        return (self._descriptor, offset)

    def at_hand(self, offset: int, length: int) -> None:
        """None: a disk is never known to answer at once."""

    def read(self, offset: int, length: int) -> bytes:
        return os.pread(self._descriptor, length, offset)

    def close(self) -> None:
        os.close(self._descriptor)


class PlainReader:
    """A file is sealed unless a file of the same name with ``.partial`` behind it lies in ``marks``; a name with
    ``.slow`` there makes each of its reads wait until the mark is gone."""

    def __init__(self, tree: PlainTree, marks: Path) -> None:
        self.tree = tree
        self._marks = marks

    def _mark(self, node: Node, kind: str) -> Path:
        return self._marks / f"{self.tree.path(node.nodeid).name[:40]}.{kind}"

    def is_sealed(self, node: Node) -> bool:
        return not self._mark(node, "partial").exists()

    def slow_down(self, node: Node) -> None:
        if self._mark(node, "fails").exists():
            raise OSError(5, "the store is gone")
        while self._mark(node, "slow").exists():
            time.sleep(0.02)

    def open(self, node: Node) -> PlainHandle:
        return PlainHandle(self, node)

    def cached_bytes(self, node: Node) -> int:
        return node.size if self.is_sealed(node) else 0


class PlainStack:
    """The data side over ``SOURCE``. A file ``hide`` in the marks folder names a child of the root to withdraw."""

    def __init__(self, source: Path, marks: Path, config: MountConfig, start_delay_s: float = 0.0) -> None:
        self.config = config
        self.tree = PlainTree(source)
        self.reader = PlainReader(self.tree, marks)
        self._marks = marks
        self._start_delay_s = start_delay_s
        self._closed = threading.Event()
        self._replaceable: list[bytes] = []
        self._hoarded: list[bytes] = []

    def start(self, *, resume: bool) -> None:
        time.sleep(self._start_delay_s)
        if (self._marks / "die").exists():
            os._exit(9)
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        while not self._closed.wait(0.05):
            mark = self._marks / "hide"
            if mark.exists():
                name = mark.read_text()
                mark.unlink()
                self.tree.hide(ROOT_ID, os.fsencode(name))

    def attach(self, kernel: Kernel) -> None:
        pass

    def facts(self) -> Facts:
        online = not (self._marks / "offline").exists()
        return Facts(0, self.config.cache_size_bytes, 1, 7, False, online, 1)

    def opened(self, opened: Opened) -> None:
        pass

    def work(self) -> Mapping[str, Work]:
        return {"count": self._count, "hoard": self._hoard}

    def _count(self, arguments: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Reports the numbers up to ``to``, for tests of the worker's socket."""
        for number in range(int(arguments["to"])):
            yield {"number": number}
        yield {"worker_pid": os.getpid()}

    def shrink(self) -> None:
        self._replaceable.clear()

    def _hoard(self, arguments: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Takes up ``mib`` of memory, which :meth:`shrink` gives back or (``for_good``) nothing does."""
        kept = self._hoarded if arguments.get("for_good") else self._replaceable
        for _ in range(int(arguments["mib"])):
            kept.append(b"\x01" * (1 << 20))
        yield {"worker_pid": os.getpid()}

    def close(self) -> None:
        self._closed.set()
