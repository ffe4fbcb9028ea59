"""The functions behind ``openshelf ingest`` and ``openshelf scan``."""
