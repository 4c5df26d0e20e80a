"""Settings declared here, and what becomes of values under every name, form and mistake."""

import enum
from dataclasses import dataclass

import pytest

from tianzhou.base.settings import (
    SettingsError,
    check,
    declarations,
    load,
    setting,
    spellings,
    suggestion,
)


class Colour(enum.Enum):
    RED = "RED_PAINT"
    BLUE = "BLUE_PAINT"


def percent(text: str) -> float:
    return float(text) / 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Paint:
    count: int = setting(3, min=1, max=9, alias="paintCount", help="Pots.")
    ratio: float = setting(0.5, min=0.1, max=0.9, alias="paintRatio", read=percent, help="Full.")
    wet: bool = setting(True, alias="isWet", help="Or dry.")
    colour: Colour = setting(Colour.RED, alias="paintType", help="Of the paint.")
    owner: str = setting("none", help="Who mixes it.")
    hours: tuple[int, ...] = setting((4,), help="When.")
    secret: int = 7
    """Not a setting: no declaration."""

    def __post_init__(self) -> None:
        problems = [
            text
            for text, is_wrong in (
                ("red paint is never dry", self.colour is Colour.RED and not self.wet),
                (
                    "without an owner there are at most 5 pots",
                    self.owner == "none" and self.count > 5,
                ),
            )
            if is_wrong
        ]
        if problems:
            raise SettingsError(problems)


def paint(values: dict[str, object]) -> Paint:
    return load(Paint, values)[0]


def problems_of(values: dict[str, object]) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load(Paint, values)
    assert str(caught.value) == "; ".join(caught.value.problems)
    return caught.value.problems


def test_settings_without_values_are_the_defaults() -> None:
    assert load(Paint, {}) == (Paint(), [])


def test_settings_accept_our_name_and_rocketmqs() -> None:
    assert paint({"count": "4"}) == paint({"paintCount": "4"}) == Paint(count=4)


def test_settings_with_unknown_names_return_them_in_order() -> None:
    _, unknown = load(Paint, {"smell": 1, "count": 2, "Count": 3, "secret": 4})
    assert unknown == ["smell", "Count", "secret"]


def test_declarations_keep_the_field_order_of_the_class() -> None:
    declared = declarations(Paint)
    assert list(declared) == ["count", "ratio", "wet", "colour", "owner", "hours"]
    assert declared["count"] == ("Pots.", 1, 9, "paintCount", None, False, "")


@pytest.mark.parametrize(("text", "wet"), [("true", True), ("FALSE", False), ("False", False)])
def test_settings_parse_every_spelling_of_a_boolean(text: str, wet: bool) -> None:
    assert paint({"isWet": text, "paintType": "BLUE"}).wet is wet


@pytest.mark.parametrize("text", ["BLUE", "BLUE_PAINT"])
def test_settings_accept_both_names_of_an_enum_value(text: str) -> None:
    assert paint({"paintType": text}).colour is Colour.BLUE


def test_settings_with_a_parser_apply_it_to_strings_only() -> None:
    assert paint({"paintRatio": "25"}).ratio == 0.25
    assert paint({"paintRatio": 0.25}).ratio == 0.25, (
        "values that are not strings are taken as they are"
    )


def test_settings_keep_values_that_already_have_their_type() -> None:
    values: dict[str, object] = {
        "count": 5,
        "wet": False,
        "colour": Colour.BLUE,
        "owner": "me",
        "hours": (1, 2),
    }
    assert paint(values) == Paint(count=5, wet=False, colour=Colour.BLUE, owner="me", hours=(1, 2))
    (problem,) = problems_of({"paintRatio": 1})
    assert problem.startswith("paintRatio = 1.0: must be from"), "a whole number is a number"
    assert type(paint({"hours": [1, 2]}).hours) is tuple, "TOML has lists"


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("count", "many", "must be a whole number"),
        ("count", 2.5, "must be of type int"),
        ("count", True, "must be of type int"),
        ("count", False, "must be of type int"),
        ("paintRatio", "half", "could not convert"),
        ("ratio", True, "must be of type float"),
        ("wet", "1", "must be true or false"),
        ("wet", 1, "must be of type bool"),
        ("colour", "GREEN", "must be one of RED_PAINT, BLUE_PAINT"),
        ("colour", 1, "must be of type Colour"),
        ("owner", 1, "must be of type str"),
        ("hours", 4, "must be a list"),
        ("hours", ["4"], "must be of type int"),
    ],
)
def test_setting_with_an_invalid_value_names_what_is_allowed(
    name: str, value: object, complaint: str
) -> None:
    (problem,) = problems_of({name: value})
    assert problem.startswith(f"{name} = {value!r}: ")
    assert complaint in problem


@pytest.mark.parametrize("value", [0, 10, "0", "10", -1])
def test_settings_reject_a_value_out_of_bounds(value: object) -> None:
    problems = problems_of({"count": value, "owner": "me"})
    assert problems == [f"paintCount = {value}: must be from 1 to 9"]


@pytest.mark.parametrize("value", [1, 9])
def test_settings_accept_values_equal_to_their_bounds(value: int) -> None:
    assert paint({"count": value, "owner": "me"}).count == value


def test_settings_reject_values_that_contradict_each_other() -> None:
    assert problems_of({"isWet": "false"}) == ["red paint is never dry"]
    assert problems_of({"isWet": "false", "count": 6}) == [
        "red paint is never dry",
        "without an owner there are at most 5 pots",
    ]


def test_settings_report_all_problems_at_once() -> None:
    problems = problems_of(
        {"paintType": "GREEN", "hours": 1, "count": 10, "paintRatio": "99", "wet": "false"}
    )
    assert problems == [
        "paintType = 'GREEN': must be one of RED_PAINT, BLUE_PAINT",
        "hours = 1: must be a list",
        "paintCount = 10: must be from 1 to 9",
        "paintRatio = 0.99: must be from 0.1 to 0.9",
        "red paint is never dry",
        "without an owner there are at most 5 pots",
    ]


def test_check_of_an_instance_rejects_values_out_of_bounds() -> None:
    check(Paint(count=9, owner="me"))
    with pytest.raises(SettingsError, match=r"paintCount = 10: .*; paintRatio = 0.0: "):
        check(Paint(count=10, owner="me", ratio=0.0))


def test_settings_reject_a_default_out_of_bounds() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Wrong:
        size: int = setting(0, min=1, help="At least one.")

    with pytest.raises(SettingsError, match="size = 0: must be from 1 to None"):
        load(Wrong, {})


def test_spellings_list_both_names_of_every_setting() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Brush:
        width: int = setting(1, alias="brushWidth", help="In millimetres.")

    found = spellings(Paint, Brush)
    assert found["paintCount"] == found["count"] == "count"
    assert found["brushWidth"] == "width"
    assert "secret" not in found, "it has no declaration"


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("paint_count", "paintCount"),
        ("PAINTCOUNT", "paintCount"),
        ("paint.count", "paintCount"),
        ("painCount", "paintCount"),
        ("piantCount", "paintCount"),
        ("hous", "hours"),
        ("is-wet", "isWet"),
        ("temperature", None),
        ("", None),
        ("x" * 1_000_000, None),
    ],
)
def test_suggestion_for_a_misspelled_name_is_the_closest_known_one(
    wrong: str, meant: str | None
) -> None:
    assert suggestion(wrong, spellings(Paint)) == meant


def test_declaration_has_the_reason_why_a_setting_cannot_change() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Can:
        size: int = setting(1, fixed="it is made of tin", help="Litres.")
        label: str = setting("", live=True, help="Text.")
        lid: bool = setting(True, help="Closed.")

    declared = declarations(Can)
    assert declared["size"].reason == "it is made of tin"
    assert declared["label"].reason == ""
    assert declared["lid"].reason == "it is read when the server starts"
