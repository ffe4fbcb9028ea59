"""The commands of this package, named without importing them."""

from openshelf.commands import Command

COMMANDS: tuple[Command, ...] = ()
