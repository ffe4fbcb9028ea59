from __future__ import annotations

from pathlib import Path

import pytest

from ingest.recipe import Recipe, RecipeError, load


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(text, "utf-8")
    return path


def test_an_empty_recipe_is_the_defaults(tmp_path: Path) -> None:
    recipe = load(written(tmp_path, "# nothing\n"))
    assert recipe == Recipe()
    assert recipe.created == "2000-01-01T00:00:00Z"
    assert recipe.mtime_ns == 946_684_800 * 10**9
    assert recipe.shard_bytes == 256 << 20


def test_what_is_saved_reads_as_the_same_recipe(tmp_path: Path) -> None:
    recipe = Recipe.model_validate(
        {"title": "题", "map": {"schema": "text", "text": "a.b"}, "licence": "MIT", "splits": {"dev": "*.dev"}}
    )
    again = load(written(tmp_path, recipe.to_yaml()))
    assert again == recipe
    assert again.digest == recipe.digest


def test_the_digest_does_not_depend_on_where_sources_lie() -> None:
    assert Recipe(sources=["/a"]).digest == Recipe(sources=["/b"]).digest
    assert Recipe(title="a").digest != Recipe(title="b").digest


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("title: a\nlicense: MIT\n", 2, "Did you mean 'licence'"),
        ("title: a\ndate: yesterday\n", 2, "date: must be a date such as 2026-05-31."),
        ("title: a\ndate: 2026-05-31 10:00:00\n", 2, "date: must be a date such as 2026-05-31."),
        ("title: 2026\n", 1, "title: must be text; put it in quotes."),
        ("title: a\nsource_urls: {a: b}\n", 2, "must be text"),
        ("splits:\n  - a\n", 1, "splits: must be a mapping"),
        ("licence: [MIT]\n", 1, "licence: must be a mapping"),
        ("licence:\n  evidence: x\n", 1, "licence.expression: is missing."),
        ("map:\n  - text\n", 2, "map.0: must be a mapping"),
        ("title: a\n1: b\n", 2, "is not a setting"),
        ("title: a\ntitle: b\n", 2, "stands twice"),
        ("map:\n  - schema: text\n    text: a\n  - schema: messages\n    messages: m\n", 4, "needs 'role'"),
        ("map:\n  schema: poem\n  text: a\n", 2, "schema: must be one of 'text', 'instruction' or 'messages'."),
        ("splits:\n  Train: '*'\n", 1, "cannot name a split"),
        ("shard_size: tiny\n", 1, "not a size"),
        ("shard_size: 10K\n", 1, "at least 1MiB"),
        ("title: [a\n", 2, "expected"),
        ("- a\n", 1, "not a mapping"),
    ],
)
def test_an_error_names_the_line(tmp_path: Path, text: str, line: int, said: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load(written(tmp_path, text))
    assert f"line {line}:" in caught.value.line()
    assert said in caught.value.line()
    assert caught.value.exit_code == 2


def test_files_are_given_to_splits_by_name_or_path() -> None:
    recipe = Recipe.model_validate({"splits": {"validation": ["dev*", "*/valid/*"], "test": "test*"}})
    names = ("corpus/dev.json", "corpus/valid/x.json", "corpus/test1.json", "corpus/other.json")
    assert [recipe.split_of(name) for name in names] == ["validation", "validation", "test", "train"]
