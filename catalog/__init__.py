"""The catalog: service of record for collections, releases, objects and their reviews."""
