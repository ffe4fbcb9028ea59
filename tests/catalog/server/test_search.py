"""Search in Chinese and English."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from catalog.search.words import document_words, query_terms
from tests.support.catalog_api import People

CORPORA = {
    "datasets/tang/poems@1.0": {"title": "全唐诗", "summary": "唐代诗歌五万首", "facets": {"language": ["zh"]}},
    "datasets/wiki/english@1.0": {
        "title": "English encyclopaedia",
        "summary": "Plain text of articles, ＦＵＬＬ width",
        "facets": {"language": ["en"]},
        "licence_expression": "CC-BY-SA-4.0",
    },
    "datasets/chat/ChatML对@1.0".replace("对", ""): {"title": "人工智能对话 GPT4数据", "facets": {"language": ["zh"]}},
}


@pytest.fixture(scope="module", autouse=True)
def _published(people: People) -> None:
    for number, (ref, about) in enumerate(CORPORA.items()):
        people.publish(ref, {"a": f"{number}".encode()}, **about)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("唐诗", {"datasets/tang/poems"}),
        ("诗", {"datasets/tang/poems"}),
        ("首", {"datasets/tang/poems"}),
        ("诗歌 唐代", {"datasets/tang/poems"}),
        ("唐话", set()),
        ("人工智能", {"datasets/chat/ChatML"}),
        ("智能对话", {"datasets/chat/ChatML"}),
        ("gpt4", {"datasets/chat/ChatML"}),
        ("数据", {"datasets/chat/ChatML"}),
        ("ENCYCLOPAEDIA", {"datasets/wiki/english"}),
        ("encyc", {"datasets/wiki/english"}),
        ("full width", {"datasets/wiki/english"}),
        ("poems", {"datasets/tang/poems"}),
        ("encyclopaedia poems", set()),
        ("!!!", set()),
        ('" OR rowid > 0 --', set()),
        ("NEAR(a b)", set()),
        ("", {"datasets/tang/poems", "datasets/wiki/english", "datasets/chat/ChatML"}),
    ],
)
def test_all_words_must_match(people: People, query: str, found: set[str]) -> None:
    answer = people.reader.ok("GET", f"/v1/search?q={quote(query)}")
    assert {item["collection"] for item in answer["collections"]} == found


def test_facets_count_what_matches_and_narrow_it(people: People) -> None:
    answer = people.reader.ok("GET", "/v1/search")
    assert answer["facets"] == {
        "language": {"zh": 2, "en": 1},
        "licence": {"Apache-2.0": 2, "CC-BY-SA-4.0": 1},
    }
    narrowed = people.reader.ok("GET", "/v1/search?language=en&licence=CC-BY-SA-4.0")
    assert [item["collection"] for item in narrowed["collections"]] == ["datasets/wiki/english"]


def test_results_are_read_a_page_at_a_time(people: People) -> None:
    first = people.reader.get("/v1/search?limit=2")
    link = first.headers["Link"].split(">")[0].removeprefix("<")
    second = people.reader.ok("GET", link)
    names = [item["collection"] for item in first.json()["collections"] + second["collections"]]
    assert names == sorted(names) and len(names) == 3
    assert second["next"] is None


def test_a_withdrawn_release_is_not_found_and_its_card_is_gone(people: People) -> None:
    people.publish("datasets/gone/corpus@1.0", {"a": b"gone"}, title="Vanishing words")
    assert people.reader.ok("GET", "/v1/search?q=vanishing")["collections"]
    people.bob.ok("POST", "/v1/collections/datasets/gone/corpus/releases/1.0/withdraw", {"reason_code": "licence"})
    assert people.reader.ok("GET", "/v1/search?q=vanishing")["collections"] == []
    assert "Vanishing" not in str(people.reader.ok("GET", "/v1/collections?limit=1000"))


def test_a_draft_is_not_found_by_readers_and_its_words_by_nobody(people: People) -> None:
    people.alice.draft("datasets/draft/corpus@1.0", {"a": b"draft"}, title="Unreleased words")
    for api in (people.reader, people.carol):
        assert api.ok("GET", "/v1/search?q=unreleased")["collections"] == []
    listed = people.reader.ok("GET", "/v1/collections?limit=1000")["collections"]
    assert "datasets/draft/corpus" not in {item["collection"] for item in listed}


def test_words_of_documents_and_terms_of_queries() -> None:
    assert document_words("人工智能AI，2024年") == ["人工", "工智", "智能", "能", "ai", "2024", "年"]
    assert query_terms("智能 ai") == ['"智能"', '"ai"*']
    assert query_terms("能") == ['"能"*']
    assert query_terms("ai 数据") == ['"ai"', '"数据"']
