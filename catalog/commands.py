"""The catalog's commands, named without importing them."""

from openshelf.commands import Command

COMMANDS = (
    Command("submit", "Ask for the review of a sealed draft", "catalog.cli.submit:submit", "Review"),
    Command("approve", "Approve a submitted release", "catalog.cli.approve:approve", "Review"),
    Command("reject", "Reject a submitted release, or ask for changes", "catalog.cli.reject:reject", "Review"),
    Command("publish", "Sign an approved release and announce it", "catalog.cli.publish:publish", "Review"),
    Command("withdraw", "Take a published release down for good", "catalog.cli.withdraw:withdraw", "Review"),
    Command("tag", "Let a tag name a release, or remove it", "catalog.cli.tag:tag", "Review"),
    Command("search", "Find collections", "catalog.cli.search:search", "Catalog"),
    Command("show", "Show a release and its files, or its report", "catalog.cli.show:show", "Catalog"),
    Command("pull", "Download a release, verified", "catalog.cli.pull:pull", "Catalog"),
    Command("verify", "Compare a release with its signed manifest", "catalog.cli.verify:verify", "Catalog"),
    Command("usage", "Show which job opened which release where", "catalog.cli.usage:usage", "Catalog"),
    Command("serve", "Run the catalog", "catalog.cli.serve:serve", "Operate"),
    Command("store", "Care for a catalog's folder while it is stopped", "catalog.cli.store:app", "Operate"),
    Command("token", "Make, list and revoke tokens", "catalog.cli.token:app", "Operate"),
)
