"""The commands of this package, named without importing them."""

from openshelf.commands import Command

COMMANDS: tuple[Command, ...] = (
    Command("mount", "Mount published releases read-only on this node", "mountd.cli.mount:mount", "Mount"),
    Command("umount", "Unmount, and end the daemon", "mountd.cli.umount:umount", "Mount"),
    Command("status", "Show the state of a mount", "mountd.cli.status:status", "Mount"),
)
