"""Made-up personal data, valid by python-stdnum's arithmetic, planted into Chinese text at known places."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import date, timedelta

from stdnum import luhn
from stdnum.cn import ric, uscc

HAN = (
    "的一是在不了有和人这中大为上个国我以要他时来用们生到作地于出就分对成会可主发年动"
    "同工也能下过子说产种面而方后多定行学法所民得经"
)
FULL_WIDTH = str.maketrans({chr(code): chr(code + 0xFEE0) for code in range(0x30, 0x7F)})
PROVINCES = (11, 13, 21, 31, 33, 37, 44, 51, 65, 71, 81, 83)


@dataclass(frozen=True, slots=True)
class Plant:
    """A value in a document: code points ``start`` to ``end``."""

    document: int
    start: int
    end: int
    entity: str


def resident_id(random_: random.Random, province: int | None = None) -> str:
    area = f"{province or random_.choice(PROVINCES)}{random_.randrange(100, 9999):04d}"
    born = date(1930, 1, 1) + timedelta(days=random_.randrange(34_000))
    body = f"{area}{born:%Y%m%d}{random_.randrange(1000):03d}"
    return body + ric.calc_check_digit(body + "0")


def credit_code(random_: random.Random) -> str:
    alphabet = "0123456789ABCDEFGHJKLMNPQRTUWXY"
    body = f"91{random_.choice(PROVINCES)}{random_.randrange(10_000):04d}MA" + "".join(random_.choices(alphabet, k=7))
    return body + uscc.calc_check_digit(body)


def bank_card(random_: random.Random, size: int = 19) -> str:
    body = "622202" + "".join(random_.choices("0123456789", k=size - 7))
    return body + luhn.calc_check_digit(body)


def mobile(random_: random.Random) -> str:
    return random_.choice(["13", "150", "166", "177", "18", "199"]).ljust(3, "8") + "".join(
        random_.choices("0123456789", k=8)
    )


def email(random_: random.Random) -> str:
    name = "".join(random_.choices("abcdefghijklmnopqrstuvwxyz", k=random_.randrange(3, 10)))
    return f"{name}{random_.randrange(100)}@{random_.choice(['163.com', 'qq.com', 'example.com.cn', 'mail.edu.cn'])}"


def ipv4(random_: random.Random) -> str:
    return (
        f"{random_.randrange(128, 220)}.{random_.randrange(256)}.{random_.randrange(256)}.{random_.randrange(1, 255)}"
    )


def plate(random_: random.Random) -> str:
    head = random_.choice("京沪粤川渝浙苏鲁") + random_.choice("ABCDEFGH")
    tail = random_.choice([f"{random_.randrange(100_000):05d}", f"D{random_.randrange(100_000):05d}"])
    return head + random_.choice(["", "·"]) + tail


MAKERS = {
    "resident_id": resident_id,
    "uscc": credit_code,
    "bank_card": bank_card,
    "mobile": mobile,
    "email": email,
    "ipv4": ipv4,
    "plate": plate,
}

CUES = {
    "resident_id": "身份证号",
    "uscc": "统一社会信用代码",
    "bank_card": "银行卡号",
    "mobile": "联系电话",
    "email": "邮箱",
    "ipv4": "登录IP",
    "plate": "车牌",
}

NEGATIVES = (
    "订单号202311251234567890123", "快递单号13812345678901", "时间戳1700000000123", "版本号10.15.7.1", "第1.2.3.4条",
    "ISBN 978-7-302-51185-9", "ISBN9787302511859", "编号20231125123456", "https://a.cn/item/13812345678.html",
    "uuid 550e8400-e29b-41d4-a716-446655440000", "sha1 da39a3ee5e6b4b0d3255bfef95601890afd80709", "138****5678",
    "1101051949********", "2023年10月12日", "lodash@4.17.21", "git@github.com:a/b.git", "京A京", "GDP增长18300000000元",
    "0.13812345678", "icon@2x.png", "IMEI 490154203237518", "圆周率3.14159265358979323846", "电话0571-87654321",
)  # fmt: skip


def filler(random_: random.Random, low: int = 5, high: int = 60) -> str:
    return "".join(random_.choices(HAN, k=random_.randrange(low, high)))


def corpus(seed: int, documents: int, *, cue: float = 0.5, wide: float = 0.1) -> tuple[list[str], list[Plant]]:
    """``documents`` texts; most hold plants (touching Han characters or borders) and hard negatives."""
    random_ = random.Random(seed)
    texts: list[str] = []
    plants: list[Plant] = []
    for document in range(documents):
        text = random_.choice(["", "😀", "𠀀𠮷", filler(random_)])
        for _ in range(random_.randrange(4)):
            if random_.random() < 0.4:
                text += f"{random_.choice(NEGATIVES)}，{filler(random_)}，"
                continue
            entity = random_.choice(list(MAKERS))
            value = MAKERS[entity](random_)
            if random_.random() < wide:
                value = value.translate(FULL_WIDTH)
            if random_.random() < cue:
                text += CUES[entity] + random_.choice(["", "：", "是", ":"])
            plants.append(Plant(document, len(text), len(text) + len(value), entity))
            text += value + random_.choice(["。", "，", ""]) + filler(random_)
        texts.append(text)
    return texts, plants
