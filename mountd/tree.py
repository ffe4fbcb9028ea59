"""The whole tree: kinds, namespaces, collections, releases, tags, and the mount's own status file.

Readers take no lock: folders' entries are replaced as a whole when something changes, under one lock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from catalog.manifest import DEFAULT_MTIME_NS
from catalog.names import KINDS, Collection, ReleaseRef
from mountd import inodes
from mountd.inodes import InodeTable
from mountd.interfaces import ROOT_ID, Invalidation, Node, Run, Totals
from mountd.own_files import OWN_FOLDER_ID, OwnFiles
from mountd.releases import FOLDER_MODE, FOLDER_TTL_S, ListedRelease, ReleaseTree
from mountd.rows import PackedFile

log = logging.getLogger("openshelf.mount.tree")

OWN_FOLDER = b".openshelf"
_FIRST_KIND_ID = 2


@dataclass(slots=True)
class _Folder:
    """A folder above releases. ``entries`` is never changed, only replaced."""

    nodeid: int
    parent_id: int
    name: bytes
    entries: Mapping[bytes, _Entry] = field(default_factory=dict)
    mode: int = FOLDER_MODE
    gid: int = 0

    def node(self) -> Node:
        return Node(self.nodeid, self.nodeid, "dir", self.mode, 0, DEFAULT_MTIME_NS, FOLDER_TTL_S, gid=self.gid)


@dataclass(frozen=True, slots=True)
class _Link:
    """A tag: a symbolic link beside the release that it names."""

    nodeid: int
    parent_id: int
    name: bytes
    target: bytes

    def node(self) -> Node:
        return Node(self.nodeid, self.nodeid, "link", 0o777, len(self.target), DEFAULT_MTIME_NS, FOLDER_TTL_S)


_Entry = _Folder | _Link | ReleaseTree


@dataclass(frozen=True, slots=True)
class CollectionState:
    """All that the mount shows of a collection: its releases, and tags that name one of them (others are left out)."""

    collection: Collection
    releases: Sequence[ListedRelease]
    tags: Mapping[str, str]


class MountTree:
    """The names of the mount. ``status`` gives what ``/.openshelf/status.json`` says. Thread-safe."""

    def __init__(self, table: InodeTable, status: Callable[[], Mapping[str, object]] = dict) -> None:
        self._table = table
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[Invalidation], None]] = []
        self._totals: dict[ReleaseRef, tuple[int, int]] = {}
        self._total = Totals(0, 0)
        self._own_files = OwnFiles(status, self._public_releases)
        self._own = _Folder(OWN_FOLDER_ID, ROOT_ID, OWN_FOLDER)
        self._kinds = {
            kind: _Folder(_FIRST_KIND_ID + number, ROOT_ID, kind.encode()) for number, kind in enumerate(KINDS)
        }
        top: dict[bytes, _Entry] = {folder.name: folder for folder in (self._own, *self._kinds.values())}
        self._root = _Folder(ROOT_ID, ROOT_ID, b"", top)
        self._fixed = {folder.nodeid: folder for folder in (self._root, self._own, *self._kinds.values())}
        self._by_slot: dict[int, _Entry] = {}

    # -- reading

    def node(self, nodeid: int) -> Node | None:
        """The node with this id; also of a release that was withdrawn while files of it are open."""
        slot, place = inodes.split(nodeid)
        if slot == 0:
            if place & inodes.FILE_BIT:
                return self._own_files.node(nodeid)
            fixed = self._fixed.get(nodeid)
            return None if fixed is None else fixed.node()
        found = self._by_slot.get(slot)
        if isinstance(found, ReleaseTree):
            return found.node(nodeid)
        return None if found is None or place else found.node()

    def lookup(self, parent_id: int, name: bytes) -> Node | None:
        """The entry ``name`` of a folder."""
        found = self._find(parent_id)
        if isinstance(found, ReleaseTree):
            return found.lookup(parent_id, name) if found.shown else None
        if not isinstance(found, _Folder):
            return None
        if found is self._own:
            return self._own_files.lookup(name)
        entry = found.entries.get(name)
        return None if entry is None else entry.root() if isinstance(entry, ReleaseTree) else entry.node()

    def glance(self, parent_id: int, name: bytes) -> Node | None:
        """As :meth:`lookup`; a file's node comes without its entry."""
        found = self._by_slot.get(parent_id >> inodes.PLACE_BITS)
        if isinstance(found, ReleaseTree):
            return found.lookup(parent_id, name, whole=False) if found.shown else None
        return self.lookup(parent_id, name)

    def run(self, nodeid: int, position: int) -> Run | None:
        """See :meth:`mountd.interfaces.Tree.run`: the folders of releases have columns."""
        found = self._find(nodeid)
        return found.run(nodeid, position) if isinstance(found, ReleaseTree) and found.shown else None

    def is_fixed(self, nodeid: int) -> bool:
        """See :meth:`mountd.interfaces.Tree.is_fixed`."""
        found = self._find(nodeid)
        return isinstance(found, ReleaseTree) and found.shown and found.has_folder(nodeid)

    def following(self, parent_id: int, nodeid: int, most: int) -> Run | None:
        """See :meth:`mountd.interfaces.Tree.following`."""
        found = self._find(parent_id)
        if not isinstance(found, ReleaseTree) or not found.shown:
            return None
        return found.following(parent_id, nodeid, most)

    def children(self, nodeid: int) -> Iterable[tuple[bytes, Node]]:
        """The entries of a folder, above releases in order of name bytes."""
        found = self._find(nodeid)
        if isinstance(found, ReleaseTree):
            return found.children(nodeid) if found.shown else ()
        if not isinstance(found, _Folder):
            return ()
        if found is self._own:
            return self._own_files.children()
        return [
            (name, entry.root() if isinstance(entry, ReleaseTree) else entry.node())
            for name, entry in sorted(found.entries.items(), key=lambda item: item[0])
        ]

    def place(self, nodeid: int) -> tuple[int, bytes] | None:
        """The parent's id and the name of a node; None for the root and for unknown ids."""
        slot, place = inodes.split(nodeid)
        if slot == 0 and place & inodes.FILE_BIT:
            return self._own_files.place(nodeid)
        found = self._find(nodeid)
        if found is None or nodeid == ROOT_ID:
            return None
        return found.place(nodeid) if isinstance(found, ReleaseTree) else (found.parent_id, found.name)

    def readlink(self, nodeid: int) -> bytes | None:
        """The target of a tag, relative to its folder."""
        found = self._find(nodeid)
        return found.target if isinstance(found, _Link) else None

    def licence(self, release: ReleaseRef) -> str | None:
        """The SPDX expression of a listed release."""
        found = self.release(release)
        return None if found is None else found.listed.licence

    def release(self, release: ReleaseRef) -> ReleaseTree | None:
        """The inside of a listed release."""
        namespace = self._kinds[release.collection.folder].entries.get(release.collection.namespace.encode())
        collection = namespace.entries.get(release.collection.name.encode()) if isinstance(namespace, _Folder) else None
        found = collection.entries.get(release.version.encode()) if isinstance(collection, _Folder) else None
        return found if isinstance(found, ReleaseTree) else None

    def pack(self, nodeid: int) -> Sequence[PackedFile]:
        """The small files in the same pack as a packed file, in order of their place; none when it is unknown."""
        found = self._find(nodeid)
        return found.pack(nodeid) if isinstance(found, ReleaseTree) else ()

    def totals(self) -> Totals:
        """Files and bytes of all listed releases."""
        return self._total

    def releases(self) -> int:
        """How many releases are listed."""
        return len(self._totals)

    def listed(self) -> list[ListedRelease]:
        """All releases that are listed."""
        return [
            entry.listed
            for folder in self._collection_folders()
            for entry in folder.entries.values()
            if isinstance(entry, ReleaseTree)
        ]

    def _collection_folders(self) -> Iterator[_Folder]:
        for kind in self._kinds.values():
            for namespace in kind.entries.values():
                if isinstance(namespace, _Folder):
                    yield from (folder for folder in namespace.entries.values() if isinstance(folder, _Folder))

    def _public_releases(self) -> list[Mapping[str, object]]:
        """What ``releases.json`` says of each release that everybody may see; the same for every worker."""
        found: list[Mapping[str, object]] = []
        for folder in self._collection_folders():
            entries = folder.entries
            links = [entry for entry in entries.values() if isinstance(entry, _Link)]
            found += [
                {
                    "release": str(entry.listed.ref),
                    "manifest_digest": entry.listed.manifest_digest,
                    "files": entry.listed.files,
                    "size_bytes": entry.listed.size_bytes,
                    "licence": entry.listed.licence,
                    "tags": sorted(link.name.decode() for link in links if link.target == entry.name),
                }
                for entry in entries.values()
                if isinstance(entry, ReleaseTree) and not entry.listed.restricted
            ]
        return sorted(found, key=lambda line: str(line["release"]))

    def subscribe(self, callback: Callable[[Invalidation], None]) -> None:
        """Call ``callback`` for every name that appears, goes away or points elsewhere."""
        self._callbacks.append(callback)

    def look_again(self, change: Invalidation) -> None:
        """Have the kernel look up a name that has not changed: what is mounted on it goes, in every mount namespace."""
        for callback in self._callbacks:
            callback(change)

    def _find(self, nodeid: int) -> _Entry | None:
        slot, _ = inodes.split(nodeid)
        return self._by_slot.get(slot) if slot else self._fixed.get(nodeid)

    # -- changing

    def update(self, states: Iterable[CollectionState]) -> None:
        """Show each collection as it now is; a collection without releases disappears.

        What stays the same keeps its node ids and is not invalidated. Node ids that are new are on disk before
        anything is shown.
        """
        states = list(states)
        self._table.slots([name for state in states for name in _slot_names(state)])
        changed: list[Invalidation] = []
        with self._lock:
            folders = [(state.collection, *self._show(state, changed)) for state in states]
            self._attach([(namespace, folder) for _, namespace, folder in folders], changed)
            self._attach([(self._kinds[each.folder], namespace) for each, namespace, _ in folders], changed)
            files = sum(files for files, _ in self._totals.values())
            self._total = Totals(files, sum(size for _, size in self._totals.values()))
        if changed:
            changed.insert(0, self._own_files.changed())
        for invalidation in changed:
            for callback in self._callbacks:
                callback(invalidation)

    def slots(self, listed: ListedRelease) -> frozenset[int]:
        """The slots that the node ids of a release lie in, listed or not: one for each access rule it was shown by."""
        return frozenset(self._table.variants([_manifest_slot(listed)])[0])

    def keep_hidden(self, releases: Sequence[ListedRelease]) -> None:
        """Know all node ids of releases, for files that are still open: of those that are not listed any more, and of
        those that had another access rule."""
        with self._lock:
            known = self._table.variants([_manifest_slot(listed) for listed in releases])
            for listed, slots in zip(releases, known, strict=True):
                _, folder = self._folders(listed.ref.collection)
                for slot in slots:
                    self._by_slot.setdefault(slot, ReleaseTree(slot, folder.nodeid, listed))

    def forget(self, slots: Iterable[int]) -> None:
        """Know the node ids of a release no more: whatever is asked about files of it that are open fails (ESTALE)."""
        with self._lock:
            for slot in slots:
                self._by_slot.pop(slot, None)

    def collections(self) -> list[Collection]:
        """All collections that are shown."""
        return [
            Collection(kind, namespace.name.decode(), name.decode())
            for kind, folder in self._kinds.items()
            for namespace in folder.entries.values()
            if isinstance(namespace, _Folder)
            for name in namespace.entries
        ]

    def _show(self, state: CollectionState, changed: list[Invalidation]) -> tuple[_Folder, _Folder]:
        """Replace what a collection's folder holds: the folders of its namespace and its own."""
        collection = state.collection
        namespace, folder = self._folders(collection)
        before = folder.entries
        after = self._entries(folder, before, state)
        for entry in before.values():
            if isinstance(entry, ReleaseTree):
                self._totals.pop(entry.listed.ref, None)
        for entry in after.values():
            self._by_slot[inodes.split(entry.nodeid)[0]] = entry
            if isinstance(entry, ReleaseTree):
                self._totals[entry.listed.ref] = entry.listed.files, entry.listed.size_bytes
                entry.shown = True
        for listed in state.releases:
            folder.mode, folder.gid = listed.folder_mode, listed.gid
        folder.entries = after
        for name, entry in before.items():
            if isinstance(entry, ReleaseTree) and after.get(name) is not entry:
                entry.shown = False
        names = (name for name in sorted(before.keys() | after.keys()) if before.get(name) is not after.get(name))
        changed += [Invalidation(folder.nodeid, name) for name in names]
        return namespace, folder

    def _folders(self, collection: Collection) -> tuple[_Folder, _Folder]:
        """The folder of a collection's namespace and its own, whether they are shown at present or not."""
        kind = self._kinds[collection.folder]
        namespace = self._subfolder(kind, f"{collection.folder}/{collection.namespace}")
        return namespace, self._subfolder(namespace, str(collection))

    def _subfolder(self, parent: _Folder, path: str) -> _Folder:
        """The folder ``path``, whether it is shown at present or not."""
        [slot] = self._table.slots([f"d {path}"])
        known = self._by_slot.get(slot)
        if isinstance(known, _Folder):
            return known
        made = _Folder(inodes.base_id(slot), parent.nodeid, path.rpartition("/")[2].encode())
        self._by_slot[slot] = made
        return made

    def _entries(self, folder: _Folder, before: Mapping[bytes, _Entry], state: CollectionState) -> dict[bytes, _Entry]:
        after: dict[bytes, _Entry] = {}
        for listed in state.releases:
            [slot] = self._table.slots([_release_slot(listed)])
            name = listed.ref.version.encode()
            known = before.get(name) or self._by_slot.get(slot)
            same = isinstance(known, ReleaseTree) and known.slot == slot
            after[name] = known if same and known is not None else ReleaseTree(slot, folder.nodeid, listed)
        for tag, version in state.tags.items():
            if version.encode() not in after or tag.encode() in after:
                continue
            [slot] = self._table.slots([_tag_slot(state.collection, tag, version)])
            known = before.get(tag.encode())
            link = _Link(inodes.base_id(slot), folder.nodeid, tag.encode(), version.encode())
            after[link.name] = known if known == link and known is not None else link
        return after

    def _attach(self, pairs: Iterable[tuple[_Folder, _Folder]], changed: list[Invalidation]) -> None:
        """Show each folder in its parent when there is something in it, else hide it."""
        replaced: dict[int, tuple[_Folder, dict[bytes, _Entry]]] = {}
        for parent, folder in pairs:
            if parent.nodeid not in replaced:
                replaced[parent.nodeid] = parent, dict(parent.entries)
            entries = replaced[parent.nodeid][1]
            shown = folder.name in entries
            if bool(folder.entries) == shown:
                continue
            if shown:
                del entries[folder.name]
            else:
                entries[folder.name] = folder
            changed.append(Invalidation(parent.nodeid, folder.name))
        for parent, entries in replaced.values():
            parent.entries = entries


def _slot_names(state: CollectionState) -> list[str]:
    collection = state.collection
    names = [f"d {collection.folder}/{collection.namespace}", f"d {collection}"]
    names += [_release_slot(listed) for listed in state.releases]
    names += [_tag_slot(collection, tag, version) for tag, version in state.tags.items()]
    return names


def _manifest_slot(listed: ListedRelease) -> str:
    """How a release's names in the table begin: with its manifest, whose rows the node ids are made of."""
    return f"r {listed.ref} {listed.manifest_digest}"


def _release_slot(listed: ListedRelease) -> str:
    """A release's name in the table: with the group that may enter, since a folder's mode never changes under a node
    id."""
    return _manifest_slot(listed) + (f" {listed.gid}" if listed.restricted else "")


def _tag_slot(collection: Collection, tag: str, version: str) -> str:
    """A tag's name in the table: with what it points to, since a link's target never changes under a node id."""
    return f"t {collection} {tag} {version}"
