"""Settings as declarations: default, unit, bounds, help text and RocketMQ's name.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class FlushSettings:
        interval_ms: int = setting(500, min=1, max=60_000, alias="flushIntervalCommitLog", help="…")

`load` turns a mapping of names (ours or RocketMQ's) into an object and reports *all* problems at
once. Reading files and the environment is left to the program.
"""

import dataclasses
import difflib
import enum
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar, cast, get_args, get_origin, get_type_hints

from tianzhou.base.errors import UsageError

T = TypeVar("T")

MASK: Final = "******"
_SUGGESTION_CUTOFF: Final = 0.75
"""Below this similarity a suggestion misleads more often than it helps."""
_SUGGESTION_CHARS_MAX: Final = 128
"""Names also come from untrusted requests, and the cost of comparing is quadratic in their
length."""
_SECRET: Final = re.compile(r"password|secret|token|credential|access_?key", re.IGNORECASE)


class SettingsError(UsageError):
    """Invalid settings; the message lists all of them."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class Declaration(NamedTuple):
    """The declaration of a setting besides its type and default."""

    help: str
    minimum: float | None
    maximum: float | None
    alias: str | None
    read: Callable[[str], object] | None
    """Parses RocketMQ's spelling of the value, where it differs from ours."""
    is_live: bool = False
    """Whether the setting can change while the server runs."""
    fixed: str = ""
    """Why the setting cannot change, if there is a reason other than that it is read once."""

    @property
    def reason(self) -> str:
        """Why the setting cannot change while the server runs; empty if it can."""
        return "" if self.is_live else self.fixed or "it is read when the server starts"


def setting(
    default: T,
    *,
    help: str,  # noqa: A002 - the natural word at the place of use
    min: float | None = None,  # noqa: A002
    max: float | None = None,  # noqa: A002
    alias: str | None = None,
    read: Callable[[str], T] | None = None,
    live: bool = False,
    fixed: str = "",
) -> T:
    """Declare a setting: `live` if it can change while the server runs, `fixed` says why not."""
    assert not (live and fixed), "a setting that can change needs no reason why it cannot"
    declared = Declaration(help, min, max, alias, read, live, fixed)
    return dataclasses.field(default=default, metadata={"setting": declared})


def masked(name: str, value: str) -> str:
    """Return the value, or asterisks if the name of the setting says that it is a secret."""
    return MASK if value and _SECRET.search(name) else value


def declarations(kind: type) -> dict[str, Declaration]:
    """Name to declaration, in the order of the class."""
    return {
        field.name: field.metadata["setting"]
        for field in dataclasses.fields(kind)
        if "setting" in field.metadata
    }


def spellings(*kinds: type) -> dict[str, str]:
    """Every accepted spelling, ours and RocketMQ's, mapped to the name of its setting."""
    found: dict[str, str] = {}
    for kind in kinds:
        for name, declared in declarations(kind).items():
            found[name] = name
            if declared.alias:
                found[declared.alias] = name
    return found


def suggestion(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that a misspelled one most likely means, or None.

    Case, underscores, hyphens and dots are ignored, so `file_reserved_time` finds
    `fileReservedTime`.
    """
    by_letters = {_letters(spelled): spelled for spelled in known}
    close = difflib.get_close_matches(
        _letters(name[:_SUGGESTION_CHARS_MAX]), by_letters, n=1, cutoff=_SUGGESTION_CUTOFF
    )
    return by_letters[close[0]] if close else None


def _letters(name: str) -> str:
    return re.sub(r"[_.\-\s]", "", name).lower()


def _defaults(kind: type) -> dict[str, object]:
    return {field.name: field.default for field in dataclasses.fields(kind)}


def load(kind: type[T], values: Mapping[str, object]) -> tuple[T, list[str]]:
    """Return an object of this class from named values, and the names that are unknown."""
    declared = declarations(kind)
    by_name = spellings(kind)
    types = get_type_hints(kind)
    chosen: dict[str, object] = {}
    problems: list[str] = []
    unknown: list[str] = []
    for key, value in values.items():
        name = by_name.get(key)
        if name is None:
            unknown.append(key)
            continue
        try:
            chosen[name] = _convert(value, types[name], declared[name])
        except ValueError as error:
            problems.append(f"{key} = {masked(key, repr(value))}: {error}")
    problems += _out_of_bounds(kind, _defaults(kind) | chosen)
    try:
        found = kind(**chosen)
    except SettingsError as error:  # values that contradict each other
        raise SettingsError(problems + error.problems) from error
    if problems:
        raise SettingsError(problems)
    return found, unknown


def check(settings: object) -> None:
    """Raise SettingsError with every value that is out of bounds."""
    kind = type(settings)
    problems = _out_of_bounds(kind, {name: getattr(settings, name) for name in declarations(kind)})
    if problems:
        raise SettingsError(problems)


def _out_of_bounds(kind: type, values: Mapping[str, Any]) -> list[str]:
    problems: list[str] = []
    for name, declared in declarations(kind).items():
        value = values[name]
        low, high = declared.minimum, declared.maximum
        if (low is not None and value < low) or (high is not None and value > high):
            problems.append(f"{declared.alias or name} = {value!r}: must be from {low} to {high}")
    return problems


def _convert(value: object, kind: object, declared: Declaration) -> object:
    if not isinstance(value, str):
        return _checked(value, kind)
    if declared.read is not None:
        return declared.read(value)
    if kind is bool:
        return _read_bool(value)
    if kind is int or kind is float:
        return _read_number(value, kind)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _read_enum(kind, value)
    return value


def _checked(value: object, kind: object) -> object:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if get_origin(kind) is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError("must be a list")
        return tuple(_checked(item, get_args(kind)[0]) for item in cast("Sequence[object]", value))
    # In Python a bool is an int; in a settings file a bool for a number is a mistake.
    is_bool_for_int = kind is int and isinstance(value, bool)
    if isinstance(kind, type) and (not isinstance(value, kind) or is_bool_for_int):
        raise ValueError(f"must be of type {kind.__name__}")
    return value


def _read_number(text: str, kind: type[int] | type[float]) -> float:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"must be a {'whole number' if kind is int else 'number'}") from None


def _read_bool(text: str) -> bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    raise ValueError("must be true or false")


def _read_enum(kind: type[enum.Enum], text: str) -> enum.Enum:
    for member in kind:
        if text in (member.name, member.value):
            return member
    raise ValueError(f"must be one of {', '.join(str(m.value) for m in kind)}")
