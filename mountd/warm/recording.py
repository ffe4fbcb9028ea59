"""Recording which files the jobs of this mount open, in order, and of large ones which chunks they read.

Opens and reads are only put into a queue by the threads that answer the kernel; a thread of its own writes them down in
``<cache>/warm/recording.jsonl``, from which the next worker goes on and the access list is made at the end. A file that
the kernel once read by itself counts as read whole, since nobody saw what of it.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from catalog.manifest import CHUNK_BYTES
from catalog.names import parse_release
from mountd.interfaces import Handle, Node, Opened, Reader
from mountd.tree import MountTree
from mountd.warm.access_list import Access, Ranges, to_lines
from openshelf.errors import OpenshelfError

log = logging.getLogger("openshelf.mount.warm")

MOST_QUEUED = 200_000
WRITE_EVERY_S = 0.25


@dataclass(slots=True)
class _File:
    """A large file of the recording. ``whole``: what was read of it is not known."""

    whole: bool
    chunks: set[int] = field(default_factory=set)
    changed: bool = False


class Recorder:
    """Records for one mount at a time. ``clock`` gives seconds since 1970."""

    def __init__(self, folder: Path, tree: MountTree, clock: Callable[[], float] = time.time) -> None:
        self.on = False
        self._tree = tree
        self._clock = clock
        self._path = folder / "recording.jsonl"
        self._lock = threading.Lock()
        self._queue: deque[tuple[int, int, int]] = deque()
        self._dropped = 0
        self._seen: set[int] = set()
        self._large: dict[int, _File] = {}
        self._target = ""
        self._until: float | None = None
        self._sink: TextIO | None = None
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="record", daemon=True)

    # -- what the threads that answer the kernel call

    def opened(self, opened: Opened) -> None:
        """Take note of an open."""
        if self.on and opened.node.content is None:
            self._put(opened.node.nodeid, -1, opened.tier != "served")

    def read(self, nodeid: int, first: int, last: int) -> None:
        """Take note that chunks ``first`` to ``last`` of a file were read."""
        if self.on:
            self._put(nodeid, first, last)

    def _put(self, nodeid: int, first: int, last: int) -> None:
        if len(self._queue) < MOST_QUEUED:
            self._queue.append((nodeid, first, last))
        else:
            self._dropped += 1

    # -- life

    def start(self) -> None:
        """Go on with the recording of an earlier worker, if there is one."""
        try:
            self._load()
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("The recording %s is damaged and is given up: %s.", self._path, error)
            self._path.unlink(missing_ok=True)
        self._thread.start()

    def close(self) -> None:
        """Write what is queued; the next worker goes on."""
        self._closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(2.0)
        with self._lock:
            self._write()
            self._close_sink()

    def begin(self, target: str, until: float | None) -> None:
        """Begin a recording for the file ``target`` of who asked, up to a time. OpenshelfError while there is one."""
        with self._lock:
            if self._target:
                raise OpenshelfError(
                    "recording",
                    f"There is a recording for {self._target} already",
                    "End it first: openshelf warm DIR --record-stop",
                )
            try:
                self._path.parent.mkdir(mode=0o700, exist_ok=True)
                self._sink = self._path.open("w", encoding="utf-8")
                self._line({"target": target, "until": until})
            except OSError as error:
                raise OpenshelfError(
                    "recording_not_kept",
                    f"The recording cannot be kept in the cache: {error.strerror}",
                    "Free space on its disk.",
                ) from error
            self._target, self._until = target, until
            self._seen, self._large, self._dropped = set(), {}, 0
            self.on = True
            self._wake.set()

    def end(self) -> dict[str, Any]:
        """Record no further; the facts. OpenshelfError when there is no recording."""
        with self._lock:
            if not self._target:
                raise OpenshelfError(
                    "no_recording", "Nothing is being recorded", "Begin with: openshelf warm DIR --record FILE"
                )
            self._finish()
            return self._facts()

    def _finish(self) -> None:
        """The lock is held."""
        if self.on:
            self.on = False
            self._write()
            if self._sink is not None:
                self._line({"ended": True})
            self._close_sink()

    def forget(self) -> None:
        """Drop a recording that has ended."""
        with self._lock:
            if not self.on:
                self._path.unlink(missing_ok=True)
                self._target = ""

    def facts(self) -> dict[str, Any]:
        """What there is, with every open whose answer the kernel has."""
        with self._lock:
            if self.on:
                self._write()
            return self._facts()

    def _facts(self) -> dict[str, Any]:
        """The lock is held."""
        return {
            "recording": self.on,
            "target": self._target,
            "until": self._until,
            "files": len(self._seen),
            "dropped": self._dropped,
        }

    def document(self) -> Iterator[str]:
        """The lines of the access list of the recording that has ended."""
        return to_lines(list(self._accesses()))

    # -- writing down

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(WRITE_EVERY_S if self.on else None)
            self._wake.clear()
            with self._lock:
                self._write()
                if self.on and self._until is not None and self._clock() >= self._until:
                    self._finish()

    def _write(self) -> None:
        """Take what is queued. The lock is held."""
        while self._queue:
            nodeid, first, last = self._queue.popleft()
            if first < 0:
                self._note_open(nodeid, whole=bool(last))
                continue
            known = self._large.get(nodeid)
            if known is not None and not known.whole and not known.chunks.issuperset(range(first, last + 1)):
                known.chunks.update(range(first, last + 1))
                known.changed = True
        for nodeid, known in self._large.items():
            if known.changed:
                known.changed = False
                self._line({"n": nodeid, "chunks": None if known.whole else _ranges(known.chunks)})
        if self._sink is not None:
            self._sink.flush()

    def _note_open(self, nodeid: int, *, whole: bool) -> None:
        if nodeid in self._seen:
            known = self._large.get(nodeid)
            if known is not None and whole and not known.whole:
                known.whole = known.changed = True
            return
        node = self._tree.node(nodeid)
        if node is None or node.entry is None or node.release is None:
            return
        self._seen.add(nodeid)
        if node.size > CHUNK_BYTES:
            self._large[nodeid] = _File(whole)
        self._line({"n": nodeid, "release": str(node.release), "path": node.entry.path, "size": node.size})

    def _line(self, line: dict[str, Any]) -> None:
        assert self._sink is not None
        try:
            self._sink.write(json.dumps(line, ensure_ascii=False) + "\n")
        except OSError as error:
            log.error("The recording cannot be written: %s.", error.strerror)

    def _close_sink(self) -> None:
        if self._sink is not None:
            self._sink.close()
            self._sink = None

    # -- reading back

    def _load(self) -> None:
        lines = self._lines()
        header = next(lines, None)
        if header is None:
            return
        ended = False
        for line in lines:
            ended = ended or "ended" in line
            if "path" in line:
                self._seen.add(line["n"])
                if line["size"] > CHUNK_BYTES:
                    self._large[line["n"]] = _File(whole=False)
            elif "chunks" in line:
                self._large[line["n"]] = _File(line["chunks"] is None, _chunks(line["chunks"]))
        self._target, self._until = header["target"], header["until"]
        if not ended:
            self._sink = self._path.open("a", encoding="utf-8")
            self._sink.write("\n")  # the last line of a killed worker may be cut off
            self.on = True

    def _lines(self) -> Iterator[dict[str, Any]]:
        if not self._path.exists():
            return
        with self._path.open(encoding="utf-8", errors="replace") as source:
            for text in source:
                try:
                    yield json.loads(text)
                except ValueError:
                    continue  # cut off by the end of a worker

    def _accesses(self) -> Iterator[Access]:
        files: dict[int, dict[str, Any]] = {}
        for line in self._lines():
            if "n" in line:
                files.setdefault(line["n"], {}).update(line)
        for each in files.values():
            if "path" in each:
                yield Access(parse_release(each["release"]), each["path"], _needed(each))


def _needed(file: dict[str, Any]) -> Ranges | None:
    """Which chunks of a recorded file were read; None for all, and where it is not known."""
    given = file.get("chunks")
    if not given or given == [[0, -(-file["size"] // CHUNK_BYTES)]]:
        return None
    return tuple((start, stop) for start, stop in given)


def _ranges(chunks: set[int]) -> list[list[int]]:
    """Chunks as runs [from, up to)."""
    runs: list[list[int]] = []
    for chunk in sorted(chunks):
        if runs and runs[-1][1] == chunk:
            runs[-1][1] += 1
        else:
            runs.append([chunk, chunk + 1])
    return runs


def _chunks(runs: list[list[int]] | None) -> set[int]:
    return {chunk for start, stop in runs or () for chunk in range(start, stop)}


class WatchedReader:
    """A reader that tells the recorder, while it records, which chunks of large files are read."""

    def __init__(self, inner: Reader, recorder: Recorder) -> None:
        self._inner = inner
        self._recorder = recorder

    def open(self, node: Node) -> Handle:
        """See :class:`mountd.interfaces.Reader`."""
        handle = self._inner.open(node)
        if not self._recorder.on or node.size <= CHUNK_BYTES:
            return handle
        return _WatchedHandle(handle, node.nodeid, self._recorder)

    def cached_bytes(self, node: Node) -> int:
        """See :class:`mountd.interfaces.Reader`."""
        return self._inner.cached_bytes(node)


class _WatchedHandle:
    def __init__(self, inner: Handle, nodeid: int, recorder: Recorder) -> None:
        self._inner = inner
        self._nodeid = nodeid
        self._recorder = recorder
        self._last = (-1, -1)

    def _note(self, offset: int, length: int) -> None:
        chunks = offset // CHUNK_BYTES, (offset + length - 1) // CHUNK_BYTES
        if chunks != self._last and length > 0:
            self._last = chunks
            self._recorder.read(self._nodeid, *chunks)

    def sealed_fd(self) -> int | None:
        return self._inner.sealed_fd()

    def locate(self, offset: int, length: int) -> tuple[int, int] | None:
        self._note(offset, length)
        return self._inner.locate(offset, length)

    def at_hand(self, offset: int, length: int) -> memoryview | None:
        self._note(offset, length)
        return self._inner.at_hand(offset, length)

    def read(self, offset: int, length: int) -> bytes | memoryview:
        self._note(offset, length)
        return self._inner.read(offset, length)

    def close(self) -> None:
        self._inner.close()
