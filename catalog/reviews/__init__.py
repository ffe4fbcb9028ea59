"""Review: the steps of a release from sealed to published or withdrawn, tags, and what reviewers read."""
