"""Write a made-up Chinese corpus with planted personal data, duplicates and broken lines.

    python scripts/sample_corpus.py FOLDER [--rows N] [--seed S]

Three files, one for each canonical schema, and ``truth.json`` with what was planted, so that the figures of an ingest
can be compared with something counted while writing. The persons do not exist: telephone numbers, cards, identity
numbers and plates are random with right check digits and a serial part of zeros; e-mail is at example.cn and
addresses at 203.0.113.0/24, which are reserved for documentation.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from pathlib import Path

_ID_WEIGHTS = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)
_USCC_ALPHABET = "0123456789ABCDEFGHJKLMNPQRTUWXY"
_PLACES = ("杭州", "成都", "西安", "青岛", "昆明", "哈尔滨", "厦门", "长沙", "苏州", "桂林")
_THINGS = ("博物馆", "茶馆", "书店", "面馆", "植物园", "古城墙", "美术馆", "夜市", "图书馆", "湿地公园")
_TOPICS = ("新能源汽车", "水稻育种", "高速铁路", "中医药", "云计算", "半导体", "航天工程", "海洋渔业", "城市规划")
_TASKS = ("写一段介绍", "总结三个要点", "列出常见问题", "拟一份提纲", "解释基本原理")
_REMARKS = (
    "周末人比较多，建议上午去。",
    "从地铁站走过去大约十分钟。",
    "门票需要提前一天预约。",
    "附近还有一家不错的早餐店。",
    "雨天路滑，记得带伞。",
)


def resident_id(rng: random.Random) -> str:
    """An 18-digit number with a right check digit and the serial 000, which is never issued."""
    body = f"110101{rng.randint(1950, 2005)}{rng.randint(1, 12):02}{rng.randint(1, 28):02}000"
    total = sum(int(digit) * weight for digit, weight in zip(body, _ID_WEIGHTS, strict=True))
    return body + "10X98765432"[total % 11]


def bank_card(rng: random.Random) -> str:
    """A 19-digit number of a UnionPay prefix with a right Luhn digit."""
    body = "622202" + "0" * 6 + f"{rng.randrange(10**6):06}"
    digits = [int(digit) for digit in body]
    total = sum(sum(divmod(digit * 2, 10)) if place % 2 == 0 else digit for place, digit in enumerate(digits[::-1]))
    return body + str(-total % 10)


def uscc(rng: random.Random) -> str:
    """A unified social credit code with a right check character."""
    body = "91330100MA" + "".join(rng.choice(_USCC_ALPHABET) for _ in range(7))
    total = sum(_USCC_ALPHABET.index(character) * pow(3, place, 31) for place, character in enumerate(body))
    return body + _USCC_ALPHABET[-total % 31]


def _plants(rng: random.Random) -> list[tuple[str, str]]:
    """Sentences with one planted value each, and the entity it is of."""
    return [
        ("mobile", f"我的手机号是138{rng.randrange(10**8):08}，请联系我。"),
        ("resident_id", f"身份证{resident_id(rng)}已登记。"),
        ("email", f"请发到user{rng.randrange(10**4)}@example.cn，谢谢。"),
        ("bank_card", f"银行卡号{bank_card(rng)}，户名已核对。"),
        ("uscc", f"公司统一社会信用代码{uscc(rng)}。"),
        ("ipv4", f"服务器地址是203.0.113.{rng.randint(1, 254)}。"),
        ("plate", f"车牌号浙A{rng.randrange(10**5):05}停在门口。"),
    ]


class Corpus:
    """Counts what is planted while the sentences are made."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.planted: Counter[str] = Counter()

    def sentence(self) -> str:
        rng = self.rng
        text = f"{rng.choice(_PLACES)}的{rng.choice(_THINGS)}值得去看看，{rng.choice(_REMARKS)}"
        return text + (
            f"当时是{rng.randint(2015, 2025)}年，编号{rng.randint(1, 99999)}。" if rng.random() < 0.5 else ""
        )

    def personal(self, share: float) -> str:
        if self.rng.random() >= share:
            return ""
        entity, text = self.rng.choice(_plants(self.rng))
        self.planted[entity] += 1
        return text

    def dialogue(self, number: int) -> dict[str, object]:
        turns = []
        for _ in range(self.rng.randint(1, 3)):
            turns.append({"role": "user", "content": f"第{number}段：请推荐一个地方。{self.personal(0.15)}"})
            turns.append({"role": "assistant", "content": self.sentence()})
        return {"id": f"d{number}", "messages": turns}

    def instruction(self, number: int) -> dict[str, str]:
        topic = self.rng.choice(_TOPICS)
        answer = f"{topic}的发展可以分为几个阶段。{self.sentence()}{self.personal(0.15)}"
        return {
            "instruction": f"{self.rng.choice(_TASKS)}：{topic}（{number}）",
            "input": self.personal(0.05),
            "output": answer,
        }

    def text(self, number: int) -> dict[str, str]:
        body = "".join(self.sentence() for _ in range(self.rng.randint(3, 12)))
        return {"id": f"t{number}", "text": f"{body}（{number}）{self.personal(0.2)}"}


def _broken(rng: random.Random) -> bytes:
    return rng.choice(
        [b'{"id": "broken", "text": ', b'["neither", "object"', b'{"text": "\\ud800 alone"}', b'{"text": "nul\x00"}']
    )


def write(folder: Path, rows: int, seed: int) -> dict[str, object]:
    """Write the three files to ``folder`` and return the truth about them."""
    folder.mkdir(parents=True, exist_ok=True)
    truth: dict[str, object] = {}
    for name, schema in (("dialogues", "messages"), ("instructions", "instruction"), ("texts", "text")):
        corpus = Corpus(seed)
        make = {"messages": corpus.dialogue, "instruction": corpus.instruction, "text": corpus.text}[schema]
        counts: Counter[str] = Counter()
        repeated: Counter[str] = Counter()
        kept: list[tuple[bytes, Counter[str]]] = []
        with (folder / f"{name}.jsonl").open("wb") as sink:
            for number in range(rows):
                before = corpus.planted.copy()
                line = json.dumps(make(number), ensure_ascii=False).encode()
                sink.write(line + b"\n")
                kept.append((line, corpus.planted - before))
                if corpus.rng.random() < 0.02:
                    line, planted = corpus.rng.choice(kept[-50:])
                    sink.write(line + b"\n")
                    counts["duplicates"] += 1
                    repeated += planted
                if corpus.rng.random() < 0.005:
                    sink.write(_broken(corpus.rng) + b"\n")
                    counts["rejected"] += 1
        total = rows + counts["duplicates"] + counts["rejected"]
        truth[name] = {
            "schema": schema,
            "rows_in": total,
            "rows_out": rows,
            "duplicates": counts["duplicates"],
            "rejected": counts["rejected"],
            "planted": dict(sorted(corpus.planted.items())),
            "planted_in_duplicates": dict(sorted(repeated.items())),
        }
    (folder / "truth.json").write_text(json.dumps(truth, ensure_ascii=False, indent=2) + "\n", "utf-8")
    return truth


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a made-up Chinese corpus with planted personal data.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=2000, help="good rows in each file")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print(json.dumps(write(arguments.folder, arguments.rows, arguments.seed), ensure_ascii=False, indent=2))


if __name__ == "__main__":
    main()
