"""Which models exist, and what becomes of a base whose model does not."""

from __future__ import annotations

from typing import Any

import pytest

from regraft.formats.cherry_v2.catalog import ModelRow, ProviderRow
from regraft.formats.cherry_v2.models import ModelChoice, ModelOverrides, ModelResolver, is_model_id, unique_model_id
from regraft.report import notices

ACME = {
    "id": "acme",
    "name": "Acme Inc.",
    "apiKey": "secret",
    "enabled": True,
    "models": [{"id": "embed", "provider": "acme", "name": "Embed 3", "group": "embeddings"}, {"id": "rank"}],
}
EMBED = ModelRow(id="acme::embed", provider_id="acme", model_id="embed", name="Embed 3", group="embeddings")
ACME_ROW = ProviderRow("acme", "Acme Inc.", is_enabled=True)


def models(*providers: Any, **model_overrides: Any) -> ModelResolver:
    return ModelResolver(list(providers), ModelOverrides(**model_overrides))


def named(model: Any, provider: Any = "acme", **more: Any) -> dict[str, Any]:
    return {"id": model, "provider": provider, **more}


def codes(choice: ModelChoice) -> list[str]:
    return [notice.code for notice in choice.notices]


def unused(found: ModelResolver) -> list[str]:
    said = list(found.unused_overrides())
    assert {notice.code for notice in said} <= {notices.OPTION_UNUSED}
    return [notice.message for notice in said]


# --- ids -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("provider", "model", "unique"),
    [
        ("acme", "embed", "acme::embed"),
        (" acme\t", "\ufeffembed ", "acme::embed"),
        ("acme", "org/embed:latest", "acme::org/embed:latest"),
        ("other", "acme::embed", "acme::embed"),
        (None, "acme::embed", "acme::embed"),
        ("acme", " acme::embed ", "acme::embed"),
        ("acme", "acme::a::b", "acme::a::b"),
        ("a::b", "embed", None),
        ("acme", "::embed", None),
        ("acme", "acme::", None),
        ("acme", "::", None),
        ("acme", None, None),
        ("acme", "", None),
        ("acme", "  ", None),
        ("acme", 5, None),
        ("", "embed", None),
        (" ", "embed", None),
        (None, "embed", None),
        (5, "embed", None),
    ],
)
def test_id_of_a_model(provider: Any, model: Any, unique: str | None) -> None:
    assert unique_model_id(provider, model) == unique


@pytest.mark.parametrize(
    ("text", "is_one"),
    [("a::b", True), ("a::b::c", True), ("a:b", False), ("a", False), ("", False), ("::b", False), ("a:: ", False)],
)
def test_form_of_a_model_id(text: str, is_one: bool) -> None:
    assert is_model_id(text) is is_one


# --- models that exist ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw", [named("embed"), named(" embed ", " acme "), named("acme::embed", "other"), {"id": "acme::embed"}]
)
def test_a_model_that_exists_is_kept(raw: dict[str, Any]) -> None:
    assert models(ACME).embedding(raw, "b1") == ModelChoice("acme::embed", EMBED, ACME_ROW)


def test_what_the_base_says_of_a_listed_model_does_not_count() -> None:
    choice = models(ACME).embedding(named("embed", name="Old name", group="old"), "b1")
    assert choice.model == EMBED


def test_a_listed_id_that_holds_the_separator_stays_as_it_is() -> None:
    found = models({"id": "acme", "models": [{"id": "hub::embed", "name": "Through a hub"}]})
    choice = found.embedding(named("hub::embed"), "b1")
    assert choice.id == "hub::embed"
    assert choice.model == ModelRow(
        id="hub::embed", provider_id="hub", model_id="embed", name="Through a hub", group=None
    )
    assert choice.provider == ProviderRow("hub", "hub", is_enabled=True)
    assert codes(choice) == []


@pytest.mark.parametrize(
    "junk",
    [
        None,
        5,
        "acme",
        {},
        {"id": None, "models": [{"id": "embed"}]},
        {"id": " ", "models": [{"id": "embed"}]},
        {"id": 5, "models": [{"id": "embed"}]},
        {"id": "x", "models": None},
        {"id": "x", "models": {"id": "embed"}},
        {"id": "x", "models": [None, 5, "embed", {}, {"id": None}, {"id": ""}]},
    ],
)
def test_junk_among_providers_harms_nothing(junk: Any) -> None:
    found = models(junk, ACME, junk)
    assert found.embedding(named("embed"), "b1") == ModelChoice("acme::embed", EMBED, ACME_ROW)


@pytest.mark.parametrize(
    ("provider", "row"),
    [
        ({"id": "acme"}, ProviderRow("acme", "acme", is_enabled=True)),
        ({"id": " acme ", "name": " "}, ProviderRow("acme", "acme", is_enabled=True)),
        ({"id": "acme", "name": "A", "enabled": False}, ProviderRow("acme", "A", is_enabled=False)),
        ({"id": "acme", "name": 5, "enabled": None}, ProviderRow("acme", "acme", is_enabled=True)),
    ],
)
def test_provider_rows(provider: dict[str, Any], row: ProviderRow) -> None:
    assert models({**provider, "models": [{"id": "embed"}]}).embedding(named("embed"), "b1").provider == row


@pytest.mark.parametrize(
    ("model", "row"),
    [
        ({"id": "embed"}, ModelRow(id="acme::embed", provider_id="acme", model_id="embed", name="embed", group=None)),
        (
            {"id": "embed", "name": " ", "group": ""},
            ModelRow(id="acme::embed", provider_id="acme", model_id="embed", name="embed", group=None),
        ),
        (
            {"id": "embed", "name": 5, "group": 5},
            ModelRow(id="acme::embed", provider_id="acme", model_id="embed", name="embed", group=None),
        ),
        (
            {"id": " embed ", "name": "E", "group": "g"},
            ModelRow(id="acme::embed", provider_id="acme", model_id="embed", name="E", group="g"),
        ),
    ],
)
def test_model_rows(model: dict[str, Any], row: ModelRow) -> None:
    assert models({"id": "acme", "models": [model]}).embedding(named("embed"), "b1").model == row


def test_the_first_of_two_providers_or_models_with_one_id_counts() -> None:
    found = models(
        {"id": "acme", "name": "First", "models": [{"id": "embed", "name": "One"}, {"id": "embed", "name": "Two"}]},
        {"id": "acme", "name": "Second", "models": [{"id": "embed", "name": "Three"}, {"id": "more"}]},
    )
    choice = found.embedding(named("embed"), "b1")
    assert choice.model is not None
    assert choice.provider is not None
    assert (choice.model.name, choice.provider.name) == ("One", "First")
    assert codes(found.embedding(named("more"), "b1")) == []


def test_no_key_ever_reaches_the_catalog() -> None:
    choice = models(ACME).embedding(named("embed", apiKey="secret"), "b1")
    assert "secret" not in repr(choice)


# --- no models slice -----------------------------------------------------------------------------------------------


def test_without_a_models_slice_every_named_model_exists() -> None:
    found = ModelResolver(None, ModelOverrides())
    choice = found.embedding(named(" embed ", name="Embed", group="g"), "b1")
    assert choice.id == "acme::embed"
    assert choice.model == ModelRow(id="acme::embed", provider_id="acme", model_id="embed", name="Embed", group="g")
    assert choice.provider == ProviderRow("acme", "acme", is_enabled=True)
    assert codes(choice) == []
    assert found.rerank(named("rank", "other"), "b1").id == "other::rank"
    assert found.embedding(None, "b2").id is None


def test_an_empty_models_slice_is_not_a_missing_one() -> None:
    assert models().embedding(named("embed"), "b1").id is None


# --- models that are gone ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw", [None, {}, 5, "embed", [], named(None), named(""), named("embed", None), named("e", "a::b")]
)
def test_a_base_that_names_no_model(raw: Any) -> None:
    choice = models(ACME).embedding(raw, "b1")
    assert (choice.id, choice.model, choice.provider, choice.notices) == (None, None, None, ())
    assert choice.problem.startswith("the base has no embedding model")
    assert "--map-model" in choice.problem
    assert "b1" in choice.problem


@pytest.mark.parametrize("raw", [named("embed", "gone"), named("gone::embed"), named(" embed", "gone ", name="E")])
def test_a_model_whose_provider_is_gone_too(raw: dict[str, Any]) -> None:
    choice = models(ACME).embedding(raw, "b1")
    assert (choice.id, choice.model, choice.provider, choice.notices) == (None, None, None, ())
    assert choice.problem.startswith("its embedding model gone::embed no longer exists, and its provider too")
    assert "--recreate-model" in choice.problem


@pytest.mark.parametrize(
    ("raw", "row"),
    [
        (named("lost"), ModelRow(id="acme::lost", provider_id="acme", model_id="lost", name="lost", group=None)),
        (
            named("lost", name="Lost one", group="g"),
            ModelRow(id="acme::lost", provider_id="acme", model_id="lost", name="Lost one", group="g"),
        ),
        (
            named(" lost ", " acme ", name=" "),
            ModelRow(id="acme::lost", provider_id="acme", model_id="lost", name="lost", group=None),
        ),
        (
            named("acme::lost", "gone"),
            ModelRow(id="acme::lost", provider_id="acme", model_id="lost", name="lost", group=None),
        ),
    ],
)
def test_a_model_whose_provider_exists_is_created_again(raw: dict[str, Any], row: ModelRow) -> None:
    choice = models(ACME).embedding(raw, "b1")
    assert (choice.id, choice.model, choice.provider) == ("acme::lost", row, ACME_ROW)
    assert codes(choice) == [notices.MODEL_RECREATED]
    assert choice.notices[0].base == "b1"


def test_a_model_is_created_again_once() -> None:
    found = models(ACME)
    first = found.embedding(named("lost", name="First name"), "b1")
    second = found.embedding(named("lost", name="Second name"), "b2")
    assert second.model == first.model
    assert codes(second) == []


def test_a_provider_without_models_is_still_a_provider() -> None:
    assert models({"id": "acme"}).embedding(named("embed"), "b1").id == "acme::embed"


# --- the user's word -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("old", ["gone::embed", "b1"])
def test_a_mapped_model_takes_the_vectors(old: str) -> None:
    found = models(ACME, mapped={old: "acme::embed"})
    choice = found.embedding(named("embed", "gone"), "b1")
    assert (choice.id, choice.model, choice.provider) == ("acme::embed", EMBED, ACME_ROW)
    assert codes(choice) == [notices.MODEL_MAPPED]
    assert "gone::embed" in choice.notices[0].message
    assert "acme::embed" in choice.notices[0].message
    assert unused(found) == []


def test_a_base_without_a_model_is_mapped_by_its_own_id() -> None:
    choice = models(ACME, mapped={"b1": "acme::embed"}).embedding(None, "b1")
    assert choice.id == "acme::embed"
    assert codes(choice) == [notices.MODEL_MAPPED]


def test_mapping_to_a_model_that_nobody_knows_creates_it() -> None:
    choice = models(ACME, mapped={"gone::embed": "new::a::b"}).embedding(named("embed", "gone", name="Old"), "b1")
    assert choice.model == ModelRow(id="new::a::b", provider_id="new", model_id="a::b", name="a::b", group=None)
    assert choice.provider == ProviderRow("new", "new", is_enabled=True)


def test_mapping_a_model_that_exists_is_the_users_word_too() -> None:
    found = models(ACME, mapped={"acme::rank": "acme::embed"})
    assert found.embedding(named("rank"), "b1").id == "acme::embed"
    assert found.embedding(named("embed"), "b2").notices == ()


def test_mapping_touches_only_the_bases_it_names() -> None:
    found = models(ACME, mapped={"b1": "acme::rank"})
    assert found.embedding(named("embed"), "b1").id == "acme::rank"
    assert found.embedding(named("embed"), "b2").id == "acme::embed"


def test_a_model_is_created_again_on_the_users_word() -> None:
    found = models(ACME, recreated=frozenset({"gone::embed"}))
    choice = found.embedding(named("embed", "gone", name="Mine", group="g"), "b1")
    assert choice.model == ModelRow(id="gone::embed", provider_id="gone", model_id="embed", name="Mine", group="g")
    assert choice.provider == ProviderRow("gone", "gone", is_enabled=True)
    assert codes(choice) == [notices.MODEL_RECREATED]
    assert codes(found.embedding(named("embed", "gone"), "b2")) == []
    assert unused(found) == []


def test_a_model_that_exists_needs_no_word_and_uses_it_up() -> None:
    found = models(ACME, recreated=frozenset({"acme::embed"}))
    assert found.embedding(named("embed"), "b1") == ModelChoice("acme::embed", EMBED, ACME_ROW)
    assert unused(found) == []


def test_words_that_met_no_base_are_said() -> None:
    found = models(ACME, mapped={"typo::embed": "acme::embed"}, recreated=frozenset({"z::z", "a::a"}))
    found.embedding(named("embed"), "b1")
    assert unused(found) == [
        "no base uses the model typo::embed or has that id",
        "no base uses the model a::a or has that id",
        "no base uses the model z::z or has that id",
    ]


# --- rerank models -------------------------------------------------------------------------------------------------


def test_a_rerank_model_that_exists_is_kept() -> None:
    choice = models(ACME).rerank(named(" rank "), "b1")
    assert (choice.id, choice.provider, codes(choice)) == ("acme::rank", ACME_ROW, [])


@pytest.mark.parametrize("raw", [None, "rank", 5, []])
def test_no_rerank_model(raw: Any) -> None:
    assert models(ACME).rerank(raw, "b1") == ModelChoice()


@pytest.mark.parametrize("raw", [named("lost"), named("rank", "gone"), {}, named(None), named("rank", "a::b")])
def test_a_dangling_rerank_model_is_cleared_with_a_warning(raw: dict[str, Any]) -> None:
    choice = models(ACME).rerank(raw, "b1")
    assert (choice.id, choice.model, choice.provider) == (None, None, None)
    assert codes(choice) == [notices.RERANK_CLEARED]
    assert (choice.notices[0].severity, choice.notices[0].base) == ("warning", "b1")


def test_an_embedding_model_created_again_earlier_resolves_a_rerank_model() -> None:
    found = models(ACME)
    assert found.rerank(named("lost"), "b0").id is None
    found.embedding(named("lost"), "b1")
    assert found.rerank(named("lost"), "b1").id == "acme::lost"
    assert found.rerank(named("lost"), "b2").id == "acme::lost"


def test_what_a_rerank_model_can_do() -> None:
    ranks = models(ACME).rerank(named("rank"), "b1")
    assert ranks.model == ModelRow(
        id="acme::rank", provider_id="acme", model_id="rank", name="rank", group=None, capabilities=("rerank",)
    )
    # One model for both: no base could be searched by meaning with a model that cannot embed.
    both = ModelResolver([ACME], ModelOverrides(), [named("rank"), None, "odd"]).rerank(named("rank"), "b1")
    assert both.model == ModelRow(
        id="acme::rank", provider_id="acme", model_id="rank", name="rank", group=None, capabilities=("embedding",)
    )


# --- providers that are retired ------------------------------------------------------------------------------------


@pytest.mark.parametrize("provider", ["cephalon", " tokenflux "])
def test_a_provider_that_v2_has_no_more_is_gone_though_v1_lists_it(provider: str) -> None:
    found = models(ACME, {"id": provider, "models": [{"id": "embed"}]})
    choice = found.embedding(named("embed", provider), "b1")
    gone = f"{provider.strip()}::embed"
    assert (choice.id, choice.gone) == (None, gone)
    assert "the application has removed its provider" in choice.problem
    assert found.embedding(named("other", provider), "b2").id is None
    assert codes(found.rerank(named("embed", provider), "b3")) == [notices.RERANK_CLEARED]
    # The user's word counts all the same, and what it means is said.
    again = models(ACME, recreated=frozenset({gone})).embedding(named("embed", provider), "b1")
    assert again.id == gone
    assert codes(again) == [notices.MODEL_RECREATED, notices.PROVIDER_RETIRED]


def test_a_model_that_names_a_retired_provider_itself_is_gone() -> None:
    assert models({**ACME, "models": [{"id": "cephalon::embed"}]}).embedding(named("cephalon::embed"), "b1").id is None


@pytest.mark.parametrize("listed", [[{"id": "embed"}], []])
def test_a_provider_that_later_releases_have_no_more_counts_as_there(listed: list[dict[str, str]]) -> None:
    found = models({"id": "github", "name": "GitHub", "models": listed})
    choice = found.embedding(named("embed", "github"), "b1")
    assert choice.id == "github::embed"
    said = choice.notices[-1]
    assert (said.code, said.base, said.severity) == (notices.PROVIDER_RETIRED, "b1", "warning")
    assert "up to 2.0.8" in said.message


def test_names_and_groups_are_trimmed_and_the_first_base_decides() -> None:
    found = models(ACME)
    first = found.embedding(named("lost", name=" Lost \t", group="\ufeffgroup "), "b1")
    assert first.model == ModelRow(id="acme::lost", provider_id="acme", model_id="lost", name="Lost", group="group")
    assert found.embedding(named("lost", name="Another"), "b2").model == first.model
    blank = found.embedding(named("blank", name=" ", group=" "), "b3").model
    assert blank == ModelRow(id="acme::blank", provider_id="acme", model_id="blank", name="blank", group=None)
