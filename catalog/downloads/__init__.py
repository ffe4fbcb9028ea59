"""Reading bytes: objects and manifests, whole or in ranges, for whom a release opens them."""
