"""``croissant.json``: the release described in MLCommons Croissant 1.0, with each file's SHA-256 and no clock.

Specification: https://docs.mlcommons.org/croissant/docs/croissant-spec-1.0.html
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ingest.card import Facts
from ingest.shapes import INSTRUCTION_FIELDS, Schema
from ingest.shards import Shard

_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "fileProperty": "cr:fileProperty",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
_PARQUET = "application/x-parquet"


def render(facts: Facts, shards: Sequence[tuple[str, Shard]]) -> bytes:
    """The Croissant record of a release whose data files are ``shards``, pairs of (split, shard)."""
    distribution: list[dict[str, Any]] = [
        {
            "@type": "cr:FileObject",
            "@id": f"data/{shard.name}",
            "name": shard.name,
            "contentUrl": f"data/{shard.name}",
            "contentSize": f"{shard.size_bytes} B",
            "encodingFormat": _PARQUET,
            "sha256": shard.sha256,
        }
        for _, shard in shards
    ]
    records = [
        _record_set(split, facts.schema, [shard for name, shard in shards if name == split])
        for split in facts.split_rows
    ]
    for split in facts.split_rows:
        files = [{"@id": f"data/{shard.name}"} for name, shard in shards if name == split]
        distribution.append(
            {
                "@type": "cr:FileSet",
                "@id": f"files-{split}",
                "name": f"files-{split}",
                "containedIn": files,
                "encodingFormat": _PARQUET,
                "includes": f"data/{split}-*.parquet",
            }
        )
    document: dict[str, Any] = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": facts.collection.split("/", 1)[1].replace("/", "-"),
        "alternateName": facts.title,
        "description": facts.recipe.summary or f"{facts.title}, release {facts.version}.",
        "version": facts.version,
        "datePublished": facts.recipe.date.isoformat(),
        "url": facts.recipe.source_urls[0]
        if facts.recipe.source_urls
        else f"openshelf://{facts.collection}@{facts.version}",
        "isLiveDataset": False,
        "distribution": distribution,
        "recordSet": records,
    }
    if facts.licence is not None:
        document["license"] = (
            f"https://spdx.org/licenses/{facts.licence}" if " " not in facts.licence else facts.licence
        )
    if facts.languages:
        document["inLanguage"] = facts.languages
    return (json.dumps(document, ensure_ascii=False, indent=2, sort_keys=True) + "\n").encode()


def _record_set(split: str, schema: Schema, shards: Sequence[Shard]) -> dict[str, Any]:
    names = ("id", *(("text",) if schema == "text" else INSTRUCTION_FIELDS if schema == "instruction" else ()), "meta")
    fields = [_field(split, name) for name in names]
    if schema == "messages":
        turns = _field(split, "messages")
        turns["repeated"] = True
        turns["subField"] = [_field(split, "messages", inner) for inner in ("role", "content")]
        del turns["source"], turns["dataType"]
        fields.insert(1, turns)
    return {
        "@type": "cr:RecordSet",
        "@id": split,
        "name": split,
        "description": f"{sum(shard.rows for shard in shards)} rows",
        "field": fields,
    }


def _field(split: str, column: str, inner: str = "") -> dict[str, Any]:
    name = f"{split}/{column}/{inner}" if inner else f"{split}/{column}"
    source: dict[str, Any] = {"fileSet": {"@id": f"files-{split}"}, "extract": {"column": column}}
    if inner:
        source["transform"] = {"jsonPath": f"$[*].{inner}"}
    return {"@type": "cr:Field", "@id": name, "name": name, "dataType": "sc:Text", "source": source}
