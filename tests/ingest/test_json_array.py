from __future__ import annotations

import codecs
import json
import random
from typing import Any

import pytest

from ingest.decode import Encoding
from ingest.readers.batch import MAX_RECORD_BYTES
from ingest.readers.json_array import read_array, read_single, sniff_layout
from ingest.rejects import Reason, Reject
from tests.support.shared_data import shared

NASTY = [{"a": '\\"[{,', "b": [1, {"c": "\\"}], "d": "]}"}, {}, {"e": "文\n\u2028"}, {"f": {"g": {"h": [[], {}]}}}]


def read(data: bytes, *, size: int = 1 << 20, keyed: bool = False) -> tuple[list[Any], list[Reject], bool, list[Any]]:
    records: list[Any] = []
    rejects: list[Reject] = []
    keys: list[Any] = []
    truncated = False
    blocks = [data[at : at + size] for at in range(0, len(data), size)]
    for batch in read_array(blocks, Encoding.UTF_8, keyed=keyed, mark_bytes=0):
        records += batch.records
        rejects += batch.rejects
        keys += batch.keys or []
        truncated = truncated or batch.truncated
    return records, rejects, truncated, keys


def test_records_do_not_depend_on_where_blocks_end() -> None:
    data = json.dumps(NASTY * 20, ensure_ascii=False, indent=1).encode()
    rng = random.Random(7)
    for _ in range(60):
        records, rejects, truncated, _ = read(data, size=rng.randint(1, 40))
        assert (records, rejects, truncated) == (NASTY * 20, [], False)


def test_rows_before_any_cut_are_kept_and_the_cut_is_told() -> None:
    data = json.dumps(NASTY * 3).encode()
    for cut in range(1, len(data)):
        records, rejects, truncated, _ = read(data[:cut])
        assert truncated
        assert records == (NASTY * 3)[: len(records)]
        assert all(reject.reason is Reason.TRUNCATED for reject in rejects)
        assert len(rejects) <= 1


def test_a_malformed_element_costs_only_itself_and_keeps_the_numbers() -> None:
    data = b'[{"a":1}, {"a":}, {"a":3}]'
    records, rejects, truncated, _ = read(data)
    assert records == [{"a": 1}, {"a": 3}]
    assert rejects == [Reject(2, 9, 7, Reason.MALFORMED_JSON)]
    assert not truncated


def test_what_follows_the_array_is_rejected() -> None:
    records, rejects, _, _ = read(b'[{"a":1}]\n{"b":2}')
    assert records == [{"a": 1}]
    assert [reject.reason for reject in rejects] == [Reason.MALFORMED_JSON]


def test_an_empty_array_has_no_record() -> None:
    assert read(b" [ ] ")[:3] == ([], [], False)


def test_an_object_of_dialogues_gives_keys() -> None:
    data = json.dumps({"11290": {"m": [1]}, 'é"': {"m": []}}).encode()
    records, rejects, _, keys = read(data, keyed=True, size=3)
    assert (records, rejects, keys) == ([{"m": [1]}, {"m": []}], [], ["11290", 'é"'])


def test_an_element_over_the_limit_is_skipped() -> None:
    data = b'[{"a":1},{"a":"' + b"x" * MAX_RECORD_BYTES + b'"},{"a":3}]'
    records, rejects, _, _ = read(data, size=4 << 20)
    assert records == [{"a": 1}, {"a": 3}]
    assert rejects == [Reject(2, 9, MAX_RECORD_BYTES + 8, Reason.TOO_LONG)]


def test_an_array_in_utf16_is_read() -> None:
    data = codecs.BOM_UTF16_BE + json.dumps(NASTY, ensure_ascii=False).encode("utf-16-be")
    batches = list(read_array([data], Encoding.UTF_16_BE, keyed=False, mark_bytes=2))
    assert [record for batch in batches for record in batch.records] == NASTY


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ('[{"a":1},\n{"a":2}]', "array"),
        ("[\n]", "array"),
        ('{"a":1}\n{"a":2}\n', "lines"),
        ('{"a":1}\n', "lines"),
        ('{"a":1,\n"b":[]}', "single"),
        ('{"1":{"m":[]},"2":{"m":[]}}', "keyed"),
        ('{\n "1": {"m": []},\n "2": {"m": []}\n}', "keyed"),
        ('{"meta":{"u":1},"text":"x"}\n{"meta":{},"text":"y"}', "lines"),
        ("", "lines"),
    ],
)
def test_the_layout_of_a_json_file_is_seen(text: str, layout: str) -> None:
    assert sniff_layout(text.encode(), complete=True) == layout


def test_a_file_that_is_one_record_is_read() -> None:
    batches = list(read_single([b'{"a":\n', b'"b"}'], Encoding.UTF_8))
    assert batches[0].records == [{"a": "b"}]


@pytest.mark.parametrize("folder", ["kdconv", "chinese-poetry"])
def test_every_real_array_reads_as_the_json_module_reads_it(folder: str) -> None:
    for path in sorted(shared(folder).rglob("*.json")):
        data = path.read_bytes()
        expected = json.loads(data)
        if isinstance(expected, list):
            assert read(data, size=1 << 16)[:3] == (expected, [], False), path.name
