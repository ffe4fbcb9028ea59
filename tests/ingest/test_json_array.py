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


def _record(number: int) -> dict[str, Any]:
    return {"id": number, "turns": [{"from": "human", "value": 'a, {b} "c"'}, {"n": [[], {}]}], "end": "},\n  {"}


def _laid_out(texts: list[str], layout: str) -> bytes:
    match layout:
        case "lines":
            return ("[\n" + ",\n".join(texts) + "\n]\n").encode()
        case "indented":
            return ("[\r\n  " + ",\r\n  ".join(texts) + "\r\n]").encode()
        case _:
            entries = [f'"key {number}": {text}' for number, text in enumerate(texts)]
            return ("{\n  " + ",\n  ".join(entries) + "\n}").encode()


@pytest.mark.parametrize("layout", ["lines", "indented", "keyed"])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"end"', '"end'),
        ('"turns": [', '"turns": '),
        ("[[], {}]", "[[], {]"),
        ("[[], {}]", "[[], {}]]"),
        ("}],", "}}],"),
        ('{"id"', '{{"id"'),
        ('{"id"', '"id"'),
    ],
)
def test_a_record_that_does_not_balance_costs_only_itself_where_records_have_lines(
    layout: str, old: str, new: str
) -> None:
    texts = [json.dumps(_record(number)) for number in range(30)]
    assert old in texts[7]
    texts[7] = texts[7].replace(old, new, 1)
    for size in (11, 500, 1 << 20):
        records, rejects, truncated, keys = read(_laid_out(texts, layout), size=size, keyed=layout == "keyed")
        kept = [record["id"] for record in records if "id" in record]
        assert kept == [number for number in range(30) if number != 7]
        assert rejects
        assert not truncated
        if layout != "keyed":  # an object's broken record may fall into several entries
            assert (len(records), rejects[0].reason) == (29, Reason.MALFORMED_JSON)
            assert rejects[0].line == 8
        else:
            assert [key for key in keys if key and key.startswith("key")] == [f"key {number}" for number in kept]


def test_many_records_that_do_not_balance_cost_only_themselves() -> None:
    texts = [json.dumps(_record(number)) for number in range(3000)]
    for number in range(5, 3000, 50):
        texts[number] = texts[number][:-1]
    records, rejects, truncated, _ = read(_laid_out(texts, "lines"), size=1 << 18)
    assert [record["id"] for record in records] == [number for number in range(3000) if number % 50 != 5]
    assert (len(rejects), truncated) == (60, False)
    assert rejects[1].line == 56


@pytest.mark.parametrize("indent", [None, 0])
def test_without_lines_that_tell_records_apart_the_rest_is_rejected_and_the_file_counts_as_cut(
    indent: int | None,
) -> None:
    texts = [json.dumps(_record(number), indent=indent) for number in range(30)]
    texts[7] = texts[7].replace('"n": [', '"n": [[')
    joint = ",\n" if indent is not None else ", "
    records, rejects, truncated, _ = read(("[" + joint.join(texts) + "]").encode())
    assert records == [_record(number) for number in range(7)]
    assert len(rejects) == 1
    assert truncated
