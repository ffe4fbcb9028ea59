"""One ingest run, from its sources to a sealed draft.

Plan → parts → duplicates → shards → the release's other files → accounts → report → catalog. Every step either finds
its result under the name of its content or makes it anew, so the same command after any interruption goes on
where it stopped and ends with the same bytes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from catalog.client import Client, DraftAbout, FileInfo, ReleaseInfo
from catalog.names import ReleaseRef
from compliance import report
from compliance.finding_counts import FindingCounts
from compliance.policy import Policy
from ingest import accounts, card, croissant, statistics
from ingest.dedup import find_duplicates
from ingest.durable import disk_full_explained, write_bytes, write_json
from ingest.engines.local import run_tasks
from ingest.licence import ReleaseLicence, decide
from ingest.parts import Part, PartTask, process_split
from ingest.plan import Plan, Split, make_plan
from ingest.publish import Attachment, existing_release, list_files, publish
from ingest.recipe import Recipe
from ingest.run_folder import RunFolder, code_version, open_run, run_id
from ingest.shards import Shard, ShardTask, make_tasks, plan_shards, write_shard
from ingest.sidecars import write_findings, write_rejects
from ingest.sources import find, shown_name
from openshelf.errors import OpenshelfError
from openshelf.units import MIB

_SMALL_BYTES = 24 * MIB
"""Work below this is done in this process: starting others takes longer."""


class Reporter(Protocol):
    """Where a run says what it is doing."""

    def stage(self, title: str, total: int | None) -> Any:
        """A context manager giving a :class:`openshelf.console.Progress`; ``total`` in bytes."""

    def note(self, text: str) -> None:
        """One line for the person at the terminal."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for. ``policy`` is loaded, ``jobs`` counts processes, ``data`` is the client's folder."""

    sources: tuple[Path, ...]
    ref: ReleaseRef
    recipe: Recipe
    policy: Policy
    jobs: int
    data: Path


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended. ``release`` is None when it ended incomplete; ``truncated`` then names the files cut short."""

    run: str
    folder: Path
    ref: ReleaseRef
    account: accounts.Account
    findings: dict[str, int]
    files: int
    size_bytes: int
    seconds: float
    release: ReleaseInfo | None
    truncated: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As ``openshelf ingest --json`` prints it."""
        return {
            "run": self.run,
            "release": str(self.ref),
            "status": "incomplete" if self.release is None else "complete",
            "state": self.release.state if self.release else None,
            "manifest_digest": self.release.manifest_digest if self.release else None,
            "rows_in": self.account.rows_in,
            "rows_out": self.account.rows_out,
            "rejected": self.account.rejected_rows,
            "rejects": dict(self.account.rejected),
            "duplicates": self.account.duplicates,
            "findings": self.findings,
            "files": self.files,
            "bytes": self.size_bytes,
            "seconds": round(self.seconds, 3),
            "truncated": list(self.truncated),
            "run_folder": str(self.folder),
        }


@dataclass(slots=True)
class _Work:
    """What a run has found out so far."""

    request: Request
    licence: ReleaseLicence
    plan: Plan
    bundles: list[tuple[Split, ...]]
    folder: RunFolder
    reporter: Reporter

    def jobs_for(self, size_bytes: int) -> int:
        return 1 if size_bytes < _SMALL_BYTES else self.request.jobs


def ingest(request: Request, client: Client, reporter: Reporter) -> Outcome:
    """Carry out ``request`` and seal the draft in ``client``'s catalog.

    The catalog is asked first, so that a wrong token costs seconds and not hours. A source that is cut short ends
    the run incomplete: its rows are in the run folder, and nothing is sealed. Raises :class:`OpenshelfError`.
    """
    begun = time.monotonic()
    sources = find(request.sources)
    licence = decide(request.recipe, request.sources)
    for warning in licence.warnings:
        reporter.note(f"licence: {warning}")
    existing_release(client, request.ref)
    total = sum(found.path.stat().st_size for found in sources.files)
    with reporter.stage("Reading sources", total) as progress:
        plan = make_plan(sources, request.recipe, request.jobs, progress)
    identifier = run_id(request.ref, plan, request.recipe, request.policy.digest)
    with open_run(request.data, identifier) as folder, disk_full_explained(folder.path):
        work = _Work(request, licence, plan, plan.bundles(), folder, reporter)
        _write_plan(work)
        parts = _make_parts(work)
        find_duplicates(parts, folder.parts, folder.duplicates)
        shards = _make_shards(work, parts)
        per_file = accounts.by_file(plan, work.bundles, parts, folder.duplicates)
        rows = {split: sum(shard.rows for name, shard in shards if name == split) for split in _split_names(plan)}
        for split, count in rows.items():
            own = [account for account, file in zip(per_file, plan.files, strict=True) if file.split == split]
            accounts.total(f"split {split}", own, count)
        account = accounts.total("run", per_file, sum(rows.values()))
        if write_rejects(plan, work.bundles, parts, folder.parts, folder.rejects_file) != account.rejected_rows:
            raise accounts.RowsLost(
                "rejects", account.rows_in, account.rows_out, account.rejected_rows, account.duplicates
            )
        findings = write_findings(parts, folder.parts, folder.duplicates, folder.findings_file)
        _refuse_nothing(account, folder)
        files = _finish_release(work, shards, rows, account, findings)
        cut = _cut_files(work, parts)
        _write_reports(work, shards, per_file, account, findings, parts, complete=not cut)
        release = None if cut else _publish(work, client, files, account)
        size = sum(file.size for file in files)
        seconds = time.monotonic() - begun
        return Outcome(
            identifier, folder.path, request.ref, account, findings.by_entity(), len(files), size, seconds, release, cut
        )


def _cut_files(work: _Work, parts: Sequence[Part]) -> tuple[str, ...]:
    """The files that end before their end."""
    cut = {
        split.file
        for bundle, part in zip(work.bundles, parts, strict=True)
        for split, member in zip(bundle, part.members, strict=True)
        if member.truncated
    }
    return tuple(work.plan.files[number].label for number in sorted(cut))


def _split_names(plan: Plan) -> list[str]:
    return list(dict.fromkeys(file.split for file in plan.files))


def _write_plan(work: _Work) -> None:
    plan = work.plan
    document = {
        "release": str(work.request.ref),
        "schema": plan.schema,
        "code": code_version(),
        "recipe_digest": work.request.recipe.digest,
        "policy_digest": work.request.policy.digest,
        "files": [
            {
                "path": shown_name(str(file.path.resolve())),
                "label": file.label,
                "sha256": file.sha256,
                "size_bytes": file.size_bytes,
                "split": file.split,
                "shape": file.shape or ("map" if file.rule else None),
                "layout": dataclasses.asdict(file.layout),
            }
            for file in plan.files
        ],
        "skipped": list(plan.skipped),
        "parts": [
            {"part": key, "splits": [[split.file, split.start, split.stop, split.first] for split in bundle]}
            for bundle, key in zip(work.bundles, _part_keys(work), strict=True)
        ],
    }
    write_json(work.folder.path / "plan.json", document)
    write_bytes(work.folder.path / "recipe.yaml", work.request.recipe.to_yaml().encode())


def _part_keys(work: _Work) -> list[str]:
    digest, code = work.request.policy.digest, code_version()
    return [work.plan.part_key(bundle, digest, code) for bundle in work.bundles]


def _make_parts(work: _Work) -> list[Part]:
    """The part of every bundle of splits, in plan order. Those of equal content share one part."""
    for left in work.folder.parts.glob(".*"):
        shutil.rmtree(left)
    keys = _part_keys(work)
    policy = work.request.policy.to_document()
    tasks: dict[str, PartTask] = {}
    sizes: dict[str, int] = {}
    for key, bundle in zip(keys, work.bundles, strict=True):
        members = tuple((work.plan.files[split.file], split) for split in bundle)
        tasks.setdefault(key, PartTask(key, work.folder.parts, members, work.plan.schema, policy))
        sizes.setdefault(key, sum(split.size_bytes for split in bundle))
    total = sum(sizes.values())
    made: dict[str, Part] = {}
    with work.reporter.stage("Cleaning and de-identifying", total) as progress:
        for number, part in run_tasks(process_split, list(tasks.values()), work.jobs_for(total), PartTask.title):
            made[part.key] = part
            progress.advance(sizes[list(tasks)[number]])
    return [made[key] for key in keys]


def _make_shards(work: _Work, parts: Sequence[Part]) -> list[tuple[str, Shard]]:
    """Write every shard; pairs of (split, shard) in release order. Files of an older plan are removed."""
    tasks: list[tuple[str, ShardTask]] = []
    for split in _split_names(work.plan):
        numbers = [at for at, bundle in enumerate(work.bundles) if work.plan.files[bundle[0].file].split == split]
        planned = plan_shards(
            numbers, parts, work.folder.parts, work.folder.duplicates, work.request.recipe.shard_bytes
        )
        made = make_tasks(
            split,
            planned,
            parts,
            work.plan.schema,
            folder=work.folder.parts,
            duplicates=work.folder.duplicates,
            release=work.folder.release,
            records=work.folder.shards,
        )
        tasks += [(split, task) for task in made]
    wanted = {task.path for _, task in tasks}
    for path in (work.folder.release / "data").iterdir():
        if path not in wanted:
            path.unlink()
    size = sum(part.files["rows.arrow"][0] for part in parts)
    shards: dict[int, Shard] = {}
    with work.reporter.stage("Writing shards", size) as progress:
        for number, shard in run_tasks(write_shard, [task for _, task in tasks], work.jobs_for(size), ShardTask.title):
            shards[number] = shard
            progress.advance(size // len(tasks))
    return [(split, shards[number]) for number, (split, _) in enumerate(tasks)]


def _refuse_nothing(account: accounts.Account, folder: RunFolder) -> None:
    if account.rows_out:
        return
    reasons = ", ".join(f"{reason} {count}" for reason, count in account.rejected.items())
    raise OpenshelfError(
        "no_rows",
        f"No row is left to release: {account.rows_in} rows in, rejected: {reasons or 'none'}",
        f"{folder.rejects_file} says where each stands." if reasons else "The sources are empty.",
    )


def _finish_release(
    work: _Work,
    shards: Sequence[tuple[str, Shard]],
    rows: dict[str, int],
    account: accounts.Account,
    findings: FindingCounts,
) -> list[FileInfo]:
    """Write the front door beside the data and list every file of the release."""
    request, licence = work.request, work.licence.licence
    listing = "".join(f"{shard.name} {shard.sha256}\n" for _, shard in shards)
    facts = card.Facts(
        collection=str(request.ref.collection),
        version=request.ref.version,
        schema=work.plan.schema,
        recipe=request.recipe,
        licence=licence.expression if licence else None,
        policy=request.policy.name,
        statistics=statistics.add([shard.statistics for _, shard in shards]),
        split_rows={split: count for split, count in rows.items() if count},
        rows_in=account.rows_in,
        rejected=account.rejected,
        duplicates=account.duplicates,
        findings=findings.by_entity(),
        data_digest=hashlib.sha256(listing.encode()).hexdigest(),
    )
    release = work.folder.release
    write_bytes(release / "README.md", card.render(facts))
    write_bytes(release / "croissant.json", croissant.render(facts, shards))
    if work.licence.text is not None:
        write_bytes(release / "LICENSE", work.licence.text)
    return list_files(release)


def _write_reports(
    work: _Work,
    shards: Sequence[tuple[str, Shard]],
    per_file: Sequence[accounts.Account],
    account: accounts.Account,
    findings: FindingCounts,
    parts: Sequence[Part],
    *,
    complete: bool,
) -> None:
    request, plan = work.request, work.plan
    described = statistics.add([shard.statistics for _, shard in shards])
    splits = [
        report.SplitFacts(split, sum(one.rows for one in own), len(own), sum(one.size_bytes for one in own))
        for split in _split_names(plan)
        if (own := [shard for name, shard in shards if name == split])
    ]
    unknown = [file.label for file in plan.files if file.schema is None]
    remarks = [*work.licence.warnings, *(f"No record shape is recognised in {label}" for label in unknown)]
    remarks += [f"Not part of the corpus: {label}" for label in plan.skipped]
    made = account.rows_out + account.duplicates
    facts = report.ReportFacts(
        release=str(request.ref),
        created=request.recipe.created,
        sources=[
            report.SourceFacts(
                file.label,
                file.sha256,
                file.size_bytes,
                _form(file.layout.kind, file.shape),
                one.rows_in,
                work.licence.of_source(file.path),
            )
            for file, one in zip(plan.files, per_file, strict=True)
        ],
        stages=[
            report.StageFacts("clean and de-identify", account.rows_in, made, account.rejected_rows),
            report.StageFacts("exact deduplication", made, account.rows_out, 0, account.duplicates),
        ],
        rejects=account.rejected,
        findings=findings,
        removed=FindingCounts.total(FindingCounts.from_document(part.removed) for part in parts),
        licence=work.licence.licence,
        evidence=work.licence.evidence,
        source_urls=request.recipe.source_urls,
        dedup={"method": "XXH3-128 of the normalised text", "scope": "run", "duplicates": account.duplicates},
        splits=splits,
        statistics={"characters": described["characters"], "scripts": described["scripts"]},
        policy=request.policy,
        recipe_digest=request.recipe.digest,
        code_version=code_version(),
        complete=complete,
        remarks=remarks,
    )
    document = report.build(facts)
    home = work.folder.report
    write_json(home / "report.json", document)
    write_bytes(home / "report.md", report.to_markdown(document).encode())
    per_split = {
        split: statistics.add([shard.statistics for name, shard in shards if name == split])
        for split in _split_names(plan)
    }
    files = [{**dataclasses.asdict(one), "rejected": dict(one.rejected)} for one in per_file]
    write_json(home / "statistics.json", {"total": described, "splits": per_split, "files": files})


def _form(kind: str, shape: str | None) -> str:
    return f"{kind}, {shape}" if shape else kind


def _publish(work: _Work, client: Client, files: Sequence[FileInfo], account: accounts.Account) -> ReleaseInfo:
    request, licence = work.request, work.licence
    languages = request.recipe.language or []
    about = DraftAbout(
        created=request.recipe.created,
        licence_expression=licence.licence.expression if licence.licence else None,
        licence_evidence=[item.to_document() for item in licence.evidence],
        source_urls=request.recipe.source_urls,
        recipe_digest=request.recipe.digest,
        policy_digest=request.policy.digest,
        residency=request.recipe.residency,
        rows=account.rows_out,
        title=request.recipe.title,
        summary=request.recipe.summary,
        facets={name: values for name, values in (("language", languages), ("task", request.recipe.task)) if values},
    )
    home = work.folder.report
    attachments = [
        Attachment("report.json", home / "report.json", "application/json"),
        Attachment("report.md", home / "report.md", "text/markdown"),
        Attachment("statistics.json", home / "statistics.json", "application/json"),
        Attachment("findings.parquet", work.folder.findings_file, "application/vnd.apache.parquet"),
        Attachment("rejects.parquet", work.folder.rejects_file, "application/vnd.apache.parquet"),
        Attachment("recipe.yaml", work.folder.path / "recipe.yaml", "application/yaml"),
    ]
    with work.reporter.stage("Uploading", sum(file.size for file in files)) as progress:
        return publish(
            client,
            request.ref,
            about,
            work.folder.release,
            files,
            attachments,
            mtime_ns=request.recipe.mtime_ns,
            progress=progress,
        )
