"""Collections: their names, owners, access rule and card."""
