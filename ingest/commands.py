"""The commands of this package, named without importing them."""

from openshelf.commands import Command

COMMANDS: tuple[Command, ...] = (
    Command(
        "ingest",
        "Clean, de-identify, deduplicate and shard a corpus into a draft",
        "ingest.cli.ingest:ingest",
        "Ingest",
    ),
    Command("scan", "Find personal data in files and say where it stands", "ingest.cli.scan:scan", "Ingest"),
)
