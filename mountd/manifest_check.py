"""What a manifest must keep to before a node shows it, checked a column at a time (about a second for 10^6 rows).

The catalog has checked the same and signed the digest; a node does not rely on that for paths, sizes and modes.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from catalog.manifest import CHUNK_BYTES, Manifest, ManifestError
from catalog.names import MAX_COMPONENT_BYTES, MAX_PATH_BYTES, RESERVED_PATHS, InvalidPath, check_path
from mountd.inodes import MAX_ROWS

_UNSAFE = (
    r"^/|//|/$|^$|(?:^|/)\.\.?(?:/|$)|\\|[\x00-\x1f\x7f]|(?:^|/) | (?:/|$)|\.(?:/|$)"
    rf"|[^/]{{{MAX_COMPONENT_BYTES + 1}}}"
)
"""What no ASCII path may hold; other paths go through :func:`catalog.names.check_path` one by one."""
_MODES = pa.array([0o444, 0o555], pa.uint16())


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
        _check_paths(paths)
        _check_order(paths, last, name)
        last = paths[-1].as_py()
        _check_numbers(batch, name)
    for reserved in RESERVED_PATHS:
        if manifest.find(reserved) is not None:
            check_path(reserved)


def _check_paths(paths: pa.LargeStringArray) -> None:
    ascii_rows = pc.string_is_ascii(paths)
    plain = paths.filter(ascii_rows)
    long = pc.greater(pc.binary_length(plain), MAX_PATH_BYTES)
    for path in plain.filter(pc.or_(long, pc.match_substring_regex(plain, _UNSAFE))).to_pylist():
        check_path(path)
        raise InvalidPath(path, "may not be shown")
    for path in paths.filter(pc.invert(ascii_rows)).to_pylist():
        check_path(path)


def _check_order(paths: pa.LargeStringArray, last: str | None, name: str) -> None:
    inside = bool(pc.all(pc.less(paths[:-1], paths[1:])).as_py())
    between = last is None or last.encode() < paths[0].as_py().encode()
    if (len(paths) > 1 and not inside) or not between:
        raise _refused(name, "is not in path order, or holds a path twice")


def _check_numbers(batch: pa.RecordBatch, name: str) -> None:
    sizes = batch.column("size")
    if not pc.all(pc.is_in(batch.column("mode"), _MODES)).as_py():
        raise _refused(name, "has a file whose mode is neither 0444 nor 0555")
    if pc.max(sizes).as_py() >= 1 << 62:
        raise _refused(name, "has a file of an impossible size")
    whole = pc.add(pc.cast(sizes, pa.int64()), CHUNK_BYTES - 1)
    expected = pc.divide(whole, CHUNK_BYTES)
    if not pc.all(pc.equal(pc.cast(pc.list_value_length(batch.column("blake3")), pa.int64()), expected)).as_py():
        raise _refused(name, "has a file with too many or too few chunk digests")


def _refused(name: str, what: str) -> ManifestError:
    return ManifestError("manifest_refused", f"The manifest of {name} {what}", "The release is not shown.")
