"""What a manifest must keep to before a node shows it, checked a column at a time (under a second for a gigabyte).

The catalog has checked the same and signed the digest; a node does not rely on that for paths, sizes and modes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from catalog.manifest import BATCH_ROWS, CHUNK_BYTES, Manifest, ManifestError
from catalog.names import MAX_COMPONENT_BYTES, RESERVED_PATHS, InvalidPath, check_path
from mountd.inodes import MAX_ROWS
from mountd.rows import Rows

_KINDS = bytes(2 if byte in b"./ " else 1 if 0x20 < byte < 0x7F and byte != 0x5C else 0 for byte in range(256))
"""1 for bytes that may stand anywhere in a path, 2 for those that may not stand first, last, or beside one another."""
_UNSAFE = (
    r"^/|//|/$|^$|(?:^|/)\.\.?(?:/|$)|\\|(?:^|/) | (?:/|$)|\.(?:/|$)"
    r"|[\x00-\x1f\x7f-\x{9f}\x{2028}\x{2029}\x{61c}\x{200e}\x{200f}\x{202a}-\x{202e}\x{2066}-\x{2069}]"
)
"""What no path may hold, as :func:`catalog.names.check_path` has it, but for its lengths and normal form."""
_SLASH = 0x2F
_PART = 4096
"""How many rows are looked at together: as many as stay in a processor's own cache."""
_ROUNDS = 8
"""How many rows after a file are looked at for a folder of its name before it is searched for."""
_MODES = (0o444, 0o555)


def check_manifest(manifest: Manifest, name: str) -> None:
    """Raise :class:`ManifestError` or :class:`InvalidPath` unless every row may be shown. ``name`` is the release's."""
    if len(manifest) > MAX_ROWS:
        raise _refused(name, f"has {len(manifest)} files; a mount shows up to {MAX_ROWS}")
    last: str | None = None
    for batch in manifest.batches():
        if not batch.num_rows:
            continue
        try:
            batch.validate(full=True)
        except pa.ArrowInvalid as error:
            raise _refused(name, f"is damaged: {error}") from error
        paths = batch.column("path")
        _check_paths(_Paths(paths))
        _check_order(paths, last, name)
        last = paths[-1].as_py()
        _check_numbers(batch, name)
    rows = Rows(manifest)
    for number, batch in enumerate(manifest.batches()):
        if batch.num_rows:
            _check_folders(_Paths(batch.column("path")), rows, number * BATCH_ROWS)
    for reserved in RESERVED_PATHS:
        if manifest.find(reserved) is not None:
            check_path(reserved)


class _Paths:
    """The paths of one batch as bytes: path ``i`` is ``text[bounds[i] : bounds[i + 1]]``."""

    def __init__(self, paths: pa.LargeStringArray) -> None:
        self.arrow = paths
        _, bounds, text = paths.buffers()
        self.bounds = np.frombuffer(bounds, np.int64)[paths.offset : paths.offset + len(paths) + 1]
        self.text = np.frombuffer(text or b"", np.uint8)

    def odd(self) -> npt.NDArray[np.int64]:
        """The rows that need a closer look: all but short ones of plain names. Most releases have none."""
        count = len(self.bounds) - 1
        return np.concatenate([self._odd(start, min(start + _PART, count)) for start in range(0, count, _PART)])

    def _odd(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Those of the rows [start, stop)."""
        bounds = self.bounds[start : stop + 1]
        first, last = int(bounds[0]), int(bounds[-1])
        kinds = np.frombuffer(self.text[first:last].tobytes().translate(_KINDS), np.uint8)
        wrong, special = kinds == 0, kinds == 2
        wrong[1:] |= special[1:] & special[:-1]
        starts, ends = bounds[:-1] - first, bounds[1:] - first
        lengths = ends - starts
        unclear = (lengths == 0) | (lengths > MAX_COMPONENT_BYTES)
        unclear[np.searchsorted(ends, np.flatnonzero(wrong), "right")] = True
        filled = np.flatnonzero(lengths)
        unclear[filled[special[starts[filled]] | special[ends[filled] - 1]]] = True
        return np.flatnonzero(unclear) + start

    def begin_alike(self, rows: npt.NDArray[np.int64], others: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """For each of ``rows``, whether the path of the one in ``others`` begins with its path and goes on."""
        lengths = self.bounds[rows + 1] - self.bounds[rows]
        alike = self.bounds[others + 1] - self.bounds[others] > lengths
        some = np.flatnonzero(alike)
        last = lengths[some] - 1
        some = some[self.text[self.bounds[rows[some]] + last] == self.text[self.bounds[others[some]] + last]]
        alike[:] = False
        if len(some):
            sizes = lengths[some]
            begins = np.cumsum(sizes) - sizes
            inside = np.arange(int(sizes.sum())) - np.repeat(begins, sizes)
            same = (
                self.text[np.repeat(self.bounds[rows[some]], sizes) + inside]
                == self.text[np.repeat(self.bounds[others[some]], sizes) + inside]
            )
            alike[some] = np.logical_and.reduceat(same, begins)
        return alike


def _check_paths(paths: _Paths) -> None:
    odd = paths.arrow.take(pa.array(paths.odd()))
    if not len(odd):
        return
    # Names of other scripts are many in some releases: those that are clearly in order need no look one by one.
    unclear = pc.or_(
        pc.or_(pc.greater(pc.binary_length(odd), MAX_COMPONENT_BYTES), pc.match_substring_regex(odd, _UNSAFE)),
        pc.not_equal(pc.utf8_normalize(odd, "NFC"), odd),
    )
    for path in odd.filter(unclear).to_pylist():
        check_path(path)


def _check_folders(paths: _Paths, rows: Rows, start: int) -> None:
    """No file may have the name of a folder. ``start`` is the batch's first row in ``rows``.

    Between the paths ``a`` and ``a/b`` stand only paths that begin with ``a``: so the rows that follow are looked at
    while they do, and after some rounds, or at the batch's end, the folder is searched for.
    """
    last = len(paths.arrow) - 1
    files = np.arange(last)
    searched = [last]
    for step in range(1, _ROUNDS + 1):
        files = files[paths.begin_alike(files, files + step)]
        following = paths.text[paths.bounds[files + step] + paths.bounds[files + 1] - paths.bounds[files]]
        if (following == _SLASH).any():
            raise _doubled(paths.arrow[int(files[following == _SLASH][0])].as_py())
        files = files[following < _SLASH]
        searched += files[files + step == last].tolist()
        files = files[files + step < last]
    for row in (*searched, *files.tolist()):
        below = paths.arrow[row].as_py().encode() + b"/"
        found = rows.lower_bound(below, start + row, len(rows))
        if found < len(rows) and rows.path(found).startswith(below):
            raise _doubled(paths.arrow[row].as_py())


def _check_order(paths: pa.LargeStringArray, last: str | None, name: str) -> None:
    inside = bool(pc.all(pc.less(paths[:-1], paths[1:])).as_py())
    between = last is None or last.encode() < paths[0].as_py().encode()
    if (len(paths) > 1 and not inside) or not between:
        raise _refused(name, "is not in path order, or holds a path twice")


def _check_numbers(batch: pa.RecordBatch, name: str) -> None:
    sizes = batch.column("size")
    if not np.isin(batch.column("mode").to_numpy(), _MODES).all():
        raise _refused(name, "has a file whose mode is neither 0444 nor 0555")
    if pc.max(sizes).as_py() >= 1 << 62:
        raise _refused(name, "has a file of an impossible size")
    whole = pc.add(pc.cast(sizes, pa.int64()), CHUNK_BYTES - 1)
    expected = pc.divide(whole, CHUNK_BYTES)
    if not pc.all(pc.equal(pc.cast(pc.list_value_length(batch.column("blake3")), pa.int64()), expected)).as_py():
        raise _refused(name, "has a file with too many or too few chunk digests")


def _refused(name: str, what: str) -> ManifestError:
    return ManifestError("manifest_refused", f"The manifest of {name} {what}", "The release is not shown.")


def _doubled(path: str) -> InvalidPath:
    return InvalidPath(path, "is the name of a file and of a folder")
