from __future__ import annotations

import codecs

import pytest

from ingest.decode import Encoding, recode_blocks, sniff
from tests.support.shared_data import shared

CHINESE = '{"text": "中华人民共和国的公民在年老、疾病或者丧失劳动能力的情况下"}\n'
RARE = '{"text": "我的名字里有一个生僻字：𠮷和㐂"}\n'


def whole(data: bytes) -> Encoding:
    return sniff(data, complete=True)


def test_utf8_is_recognised_before_gb18030() -> None:
    assert whole(CHINESE.encode()) is Encoding.UTF_8


def test_gb18030_with_four_byte_characters_is_recognised() -> None:
    assert whole(RARE.encode("gb18030")) is Encoding.GB18030


def test_a_short_gbk_line_is_recognised() -> None:
    assert whole('{"text":"你好世界"}'.encode("gbk")) is Encoding.GB18030


@pytest.mark.parametrize(
    ("mark", "encoding"),
    [
        (codecs.BOM_UTF8, Encoding.UTF_8),
        (codecs.BOM_UTF16_LE, Encoding.UTF_16_LE),
        (codecs.BOM_UTF16_BE, Encoding.UTF_16_BE),
    ],
)
def test_a_byte_order_mark_is_believed(mark: bytes, encoding: Encoding) -> None:
    assert whole(mark + "你好".encode(encoding.value)) is encoding


def test_a_utf8_file_with_a_few_bad_lines_stays_utf8() -> None:
    data = CHINESE.encode() * 9 + CHINESE.encode("gb18030")
    assert whole(data) is Encoding.UTF_8


def test_a_utf8_sample_cut_inside_a_character_stays_utf8() -> None:
    data = (CHINESE * 3).encode()
    cut = data.rfind("动".encode()) + 1
    assert sniff(data[:cut], complete=False) is Encoding.UTF_8


@pytest.mark.parametrize(
    "data",
    [
        "こんにちは世界。今日は天気がいいですね。私は日本人です".encode("euc_jp"),
        "안녕하세요 세계 여러분 오늘은 날씨가 좋습니다".encode("euc_kr"),
        "臺灣繁體中文的測試檔案，這是一個測試".encode("big5"),
        "Съешь же ещё этих мягких французских булок".encode("koi8_r"),
        "déjà vu à l'été, naïve façade".encode("latin-1"),
    ],
)
def test_other_legacy_encodings_do_not_pass_as_chinese(data: bytes) -> None:
    assert whole(data) is Encoding.UTF_8


@pytest.mark.parametrize("name", ["big5", "euc_jp", "euc_kr", "shiftjis", "koi8r", "windows_1251", "iso88596_ar"])
def test_charset_samples_of_other_languages_do_not_pass_as_chinese(name: str) -> None:
    sample = shared("node-chardet", "src", "test", "data", "encodings", name)
    assert whole(sample.read_bytes()) is Encoding.UTF_8


def test_the_gb18030_charset_sample_is_recognised() -> None:
    sample = shared("node-chardet", "src", "test", "data", "encodings", "gb18030")
    assert whole(sample.read_bytes()) is Encoding.GB18030


def test_a_big5_sample_that_also_decodes_as_gb18030_is_refused() -> None:
    sample = shared("charset-normalizer", "data", "sample-chinese.txt").read_bytes()
    sample.decode("gb18030")
    assert whole(sample) is Encoding.UTF_8


def test_real_traditional_poems_are_recognised_in_gb18030() -> None:
    poems = shared("chinese-poetry", "全唐诗", "poet.tang.0.json").read_text("utf-8")
    assert whole(poems.encode("gb18030")) is Encoding.GB18030


def test_recoding_does_not_depend_on_where_blocks_end() -> None:
    data = codecs.BOM_UTF16_LE + "甲𠮷乙\n丙".encode("utf-16-le")
    for size in range(1, len(data)):
        blocks = [data[at : at + size] for at in range(0, len(data), size)]
        assert b"".join(recode_blocks(blocks, Encoding.UTF_16_LE)) == "甲𠮷乙\n丙".encode()


def test_undecodable_gb18030_bytes_come_out_as_no_utf8() -> None:
    data = "好".encode("gb18030") + b"\xff\n" + "好".encode("gb18030")
    bad, good = b"".join(recode_blocks([data], Encoding.GB18030)).split(b"\n")
    assert good.decode() == "好"
    with pytest.raises(UnicodeDecodeError):
        bad.decode()
