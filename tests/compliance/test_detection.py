"""What counts as personal data and what only looks like it. All values are made up."""

from __future__ import annotations

import pyarrow as pa
import pytest

from compliance.detect import Detector

ACTED_ON = 0.5
"""The standard policy replaces from this score."""


@pytest.fixture(scope="module")
def detector() -> Detector:
    return Detector()


def found(detector: Detector, text: str, from_score: float = 0.0) -> list[tuple[str, str]]:
    rows = detector.scan(pa.array([text])).to_pylist()
    return [(row["entity"], text[row["start"] : row["end"]]) for row in rows if row["score"] >= from_score - 1e-6]


@pytest.mark.parametrize(
    ("text", "entity", "value"),
    [
        ("电话13812345678。", "mobile", "13812345678"),
        ("13812345678", "mobile", "13812345678"),
        ("联系张三138-1234-5678吧", "mobile", "138-1234-5678"),
        ("电话：138 1234 5678", "mobile", "138 1234 5678"),
        ("138.1234.5678", "mobile", "138.1234.5678"),
        ("打+86 13812345678", "mobile", "+86 13812345678"),
        ("打0086-138-1234-5678", "mobile", "0086-138-1234-5678"),
        ("86-13812345678", "mobile", "86-13812345678"),
        ("8613812345678", "mobile", "8613812345678"),
        ("(+86)13812345678", "mobile", "(+86)13812345678"),
        ("(+8613812345678)", "mobile", "+8613812345678"),
        ("手机１３８１２３４５６７８", "mobile", "１３８１２３４５６７８"),
        ("手机1３8１２３45６７8", "mobile", "1３8１２３45６７8"),
        ("＋８６－１３８－１２３４－５６７８", "mobile", "＋８６－１３８－１２３４－５６７８"),
        ("138—1234—5678", "mobile", "138—1234—5678"),
        ("138\u30001234\u30005678", "mobile", "138\u30001234\u30005678"),
        ("广电19212345678", "mobile", "19212345678"),
        ("tel13812345678", "mobile", "13812345678"),
        ("https://a.cn/?phone=13812345678", "mobile", "13812345678"),
        ("新号段手机15412345678", "mobile", "15412345678"),
        ("身份证11010519491231002X，", "resident_id", "11010519491231002X"),
        ("11010519491231002x", "resident_id", "11010519491231002x"),
        ("身份证11010519491231002×", "resident_id", "11010519491231002×"),
        ("１１０１０５１９４９１２３１００２Ｘ", "resident_id", "１１０１０５１９４９１２３１００２Ｘ"),
        ("证件110105 19491231 002X号", "resident_id", "110105 19491231 002X"),
        ("证件110105-19491231-002X号", "resident_id", "110105-19491231-002X"),
        ("身份证110105491231002", "resident_id", "110105491231002"),
        ("身份证号110105194912310021", "resident_id", "110105194912310021"),  # last digit mistyped
        ("请发简历至dongyu@163.com", "email", "dongyu@163.com"),
        ("邮箱：Zhang.San+a@Mail.Example.COM.CN。", "email", "Zhang.San+a@Mail.Example.COM.CN"),
        ("邮箱zhang＠example.com", "email", "zhang＠example.com"),
        ("123456789@qq.com", "email", "123456789@qq.com"),
        ("zhang[at]example.com", "email", "zhang[at]example.com"),
        ("zhang(at)example(dot)com", "email", "zhang(at)example(dot)com"),
        ("卡号6222021234567890128", "bank_card", "6222021234567890128"),
        ("6222 0212 3456 7890 128", "bank_card", "6222 0212 3456 7890 128"),
        ("银行卡 6222-0212-3456-7890-128", "bank_card", "6222-0212-3456-7890-128"),
        ("visa 4111 1111 1111 1111", "bank_card", "4111 1111 1111 1111"),
        ("信用卡5555555555554444", "bank_card", "5555555555554444"),
        ("税号91350100M000100Y43", "uscc", "91350100M000100Y43"),
        ("代码91350100m000100y43", "uscc", "91350100m000100y43"),
        ("登录IP203.0.113.7失败", "ipv4", "203.0.113.7"),
        ("http://203.0.113.7:8080/a", "ipv4", "203.0.113.7"),
        ("服务器192.168.1.100", "ipv4", "192.168.1.100"),
        ("１９２．１６８．１．１００", "ipv4", "１９２．１６８．１．１００"),
        ("ssh root@203.0.113.7", "ipv4", "203.0.113.7"),
        ("车牌京A12345", "plate", "京A12345"),
        ("京A·D12345停在楼下", "plate", "京A·D12345"),
        ("粤B12345D", "plate", "粤B12345D"),
        ("沪A•12345", "plate", "沪A•12345"),
        ("京a12345", "plate", "京a12345"),
        ("京Ａ１２３４５", "plate", "京Ａ１２３４５"),
        ("教练车京A1234学", "plate", "京A1234学"),
        ("山东鲁A12345", "plate", "鲁A12345"),
        ("WJ京12345", "plate", "WJ京12345"),
    ],
)
def test_a_value_is_found_whole(detector: Detector, text: str, entity: str, value: str) -> None:
    assert found(detector, text, ACTED_ON) == [(entity, value)]


@pytest.mark.parametrize(
    "text",
    [
        "时间戳1700000000123",
        "1612345678901",
        "订单号13812345678",
        "快递单号：13812345678",
        "138123456789",
        "0.13812345678",
        "13812345678.50",
        "GDP 18300000000元",
        "13800000000000",
        "https://item.example.cn/13812345678.html",
        "IMG_13812345678.jpg",
        "uuid 550e8400-e29b-41d4-a716-446655440000",
        "uuid 13812345-6781-4138-8123-456781381234",
        "da39a3ee13812345678bfef95601890afd80709a",
        "ISBN 978-7-302-51185-9",
        "ISBN9787302511859",
        "138****5678",
        "+13812345678",  # a number in the United States
        "z***n@example.com",
        "110105********002X",
        "6222 **** **** 0128",
        "110105194913310020",  # no 13th month
        "990105194912310020",  # no such province
        "11010519491231002XY",
        "订单202311251234567890",
        "圆周率3.14159265358979323846",
        "6222021234567890129",  # Luhn fails
        "版本1.2.3.4",
        "v1.2.3.4",
        "Chrome/120.0.60.9 Safari",
        "第1.2.3.4条",
        "1.2.3.4.5",
        "256.1.1.1",
        "01.02.03.04",
        "1.2.3.4 概述",
        "lodash@4.17.21",
        "icon@2x.png",
        "git@github.com:a/b.git",
        "https://user:pw@example.com/",
        "@张三",
        "a@b",
        "京A京",
        "京ABCDEF",
        "京A1234",
        "苏A12345型",
        "京A123456789",
        "91350100M000100Y44",  # check character wrong
    ],
)
def test_what_only_looks_like_personal_data_is_not_acted_on(detector: Detector, text: str) -> None:
    assert found(detector, text, ACTED_ON) == []


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("13812345678、13912345678", ["13812345678", "13912345678"]),
        ("13812345678/13912345678", ["13812345678", "13912345678"]),
        ("203.0.113.7-203.0.113.9", ["203.0.113.7", "203.0.113.9"]),
        ("电话13812345678万先生", ["13812345678"]),
        ("IP是203.0.113.7.Then", ["203.0.113.7"]),
        ("138 1234 5678 139 1234 5678", ["138 1234 5678", "139 1234 5678"]),
        ("13812345678 13912345678", ["13812345678", "13912345678"]),
        ("a@example.com,b@example.com", ["a@example.com", "b@example.com"]),
        ("电话010-62345678或13812345678", ["13812345678"]),
        ("订单号17，手机13812345678", ["13812345678"]),
    ],
)
def test_neighbours_are_found_each(detector: Detector, text: str, values: list[str]) -> None:
    assert [value for _, value in found(detector, text, ACTED_ON)] == values


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("13812345678@163.com", [("email", "13812345678@163.com")]),
        ("11010519491231002X@example.com", [("email", "11010519491231002X@example.com")]),
    ],
)
def test_an_address_wins_over_the_number_in_it(detector: Detector, text: str, expected: list[tuple[str, str]]) -> None:
    assert found(detector, text, ACTED_ON) == expected


def test_eighteen_digits_with_an_identity_checksum_are_no_card_and_no_credit_code(detector: Detector) -> None:
    from stdnum import luhn
    from stdnum.cn import ric, uscc

    both = []
    for sequence in range(1000):
        body = f"52010019800{sequence % 9 + 1}{sequence % 28 + 1:02d}{sequence:03d}"
        number = body + ric.calc_check_digit(body + "0")
        if number.isdigit() and (luhn.is_valid(number) or uscc.calc_check_digit(number[:17]) == number[17]):
            both.append(number)
    assert len(both) > 100
    rows = detector.scan(pa.array(both)).to_pylist()
    assert {row["entity"] for row in rows} == {"resident_id"}
    assert len(rows) == len(both)


def test_detectors_say_why(detector: Detector) -> None:
    texts = {
        "身份证11010519491231002X": ("resident_id.checksum", 0.99),
        "11010519491231002X": ("resident_id.checksum", 0.95),
        "身份证110105194912310021": ("resident_id.cue", 0.6),
        "身份证110105491231002": ("resident_id.15", 0.85),
        "110105491231002": ("resident_id.15", 0.3),
        "电话13812345678": ("mobile.segment", 0.98),
        "13812345678": ("mobile.segment", 0.85),
        "15412345678": ("mobile.shape", 0.45),
        "127.0.0.1": ("ipv4.reserved", 0.3),
        "10.200.3.4": ("ipv4.private", 0.65),
        "8.8.8.8": ("ipv4.public", 0.4),
    }
    rows = detector.scan(pa.array(list(texts))).to_pylist()
    assert [(row["detector"], round(row["score"], 4)) for row in rows] == list(texts.values())


def test_only_the_named_entities_are_looked_for() -> None:
    only_mail = Detector(["email"])
    assert found(only_mail, "13812345678 a@example.com") == [("email", "a@example.com")]
