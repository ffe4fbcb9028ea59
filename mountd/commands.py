"""The commands of this package, named without importing them."""

from openshelf.commands import Command

COMMANDS: tuple[Command, ...] = (
    Command("mount", "Mount published releases read-only on this node", "mountd.cli.mount:mount", "Mount"),
    Command("umount", "Unmount, and end the daemon", "mountd.cli.umount:umount", "Mount"),
    Command("warm", "Bring releases into the cache before jobs read them", "mountd.cli.warm:warm", "Mount"),
    Command("pin", "Keep releases in a node's cache, or show which are kept", "mountd.cli.pin:pin", "Mount"),
    Command("evict", "Remove releases from a node's cache", "mountd.cli.evict:evict", "Mount"),
    Command("cache", "See and check what a node's cache holds", "mountd.cli.cache:app", "Mount"),
    Command("status", "Show the state of a mount", "mountd.cli.status:status", "Mount"),
    Command(
        "probe", "Say within two seconds whether a mount serves, whatever happens", "mountd.cli.probe:probe", "Mount"
    ),
    Command("doctor", "Say how fast this host can read, why, and what would help", "mountd.cli.doctor:doctor", "Mount"),
    Command("upgrade", "Let the installed version take a mount over under load", "mountd.cli.upgrade:upgrade", "Mount"),
)
