"""Which way the bytes take on this host, and why."""

from __future__ import annotations

from dataclasses import dataclass

from mountd.doctor.trial import Trial
from mountd.options import Options


@dataclass(frozen=True, slots=True)
class DataPath:
    """How files are read: of complete releases, complete files of others, and the rest; ``why`` in one line each."""

    complete_releases: str
    complete_files: str
    others: str
    why: tuple[str, ...]


def data_path(trial: Trial, options: Options, *, may_administer: bool, stacked_cache: bool, libfuse: bool) -> DataPath:
    """The way for a host: ``stacked_cache``: the cache lies on overlayfs; ``libfuse``: fuse-python is installed."""
    if trial.error:
        way = "libfuse" if libfuse else "none"
        return DataPath(way, way, way, (f"the kernel cannot be spoken to directly: {trial.error}",))
    why = []
    files = "served" if trial.no_passthrough else "passthrough"
    if trial.no_passthrough:
        why.append(f"no passthrough: {trial.no_passthrough}")
    refusal = (
        "it is switched off (materialise = no)"
        if options.materialise == "no"
        else "the access ledger is required (ledger = required)"
        if options.ledger == "required"
        else "the process lacks CAP_SYS_ADMIN"
        if not may_administer
        else "the cache lies on overlayfs"
        if stacked_cache
        else ""
    )
    if refusal:
        why.append(f"no materialised releases: {refusal}")
    return DataPath(files if refusal else "materialised", files, "served", tuple(why))
