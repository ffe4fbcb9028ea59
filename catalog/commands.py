"""The catalog's commands, named without importing them."""

from openshelf.commands import Command

COMMANDS = (Command("serve", "Run the catalog", "catalog.cli.serve:serve", "Operate"),)
