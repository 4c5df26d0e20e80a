"""Sources of a server's settings, and their precedence.

    defaults < file (-c) < environment (TIANZHOU_*) < --set NAME=VALUE < options of the command

Each source may use Tianzhou's or RocketMQ's name of a setting. An unknown name after `--set` is an
error, because the user has just typed it. In a file it is logged: RocketMQ's files contain many
settings that have no meaning here. In the environment only names that look like a misspelt setting
are logged, because other programs may use variables with this prefix.
"""

import functools
import logging
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import click

from tianzhou.base.settings import SettingsError, masked, spellings, suggestion
from tianzhou.cmd import config_file

PREFIX: Final = "TIANZHOU_"
OTHER_VARIABLES: Final = frozenset({"NAMESERVER", "CREDENTIALS", "ARCHIVE", "COMPLETE", "LISTEN"})
"""Variables with the prefix that are not server settings."""
_SERVICE_LINKS: Final = ("tcp://", "udp://", "sctp://")
"""Kubernetes sets `TIANZHOU_PORT=tcp://…` in every pod beside a service called `tianzhou`."""

log: Final = logging.getLogger("tianzhou")


class Sources(NamedTuple):
    """Settings from the command line."""

    path: Path | None = None
    changes: tuple[str, ...] = ()
    """`NAME=VALUE`, in the order in which they were given."""


def options(about: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options `-c` and `--set`; the command gets both as one argument, `sources`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def called(
            *args: object, path: Path | None, changes: tuple[str, ...], **kwargs: object
        ) -> None:
            command(*args, sources=Sources(path, changes), **kwargs)

        file = click.Path(exists=True, dir_okay=False, path_type=Path)
        help_ = "Set a setting; repeatable; overrides file and environment."
        found = click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help=help_)(
            called
        )
        return click.option(
            "-c", "--config", "path", type=file, help=f"Read settings from a file: {about}."
        )(found)

    return decorate


class Given:
    """Raw settings by source, before validation. Owner: the command."""

    def __init__(self, kinds: Iterable[type], *, also: Iterable[str] = ()) -> None:
        """`also` are names that the command reads itself, besides the settings of `kinds`."""
        self._known = spellings(*kinds) | {name: name for name in also}
        self.values: dict[str, object] = {}
        self._sources: dict[str, str] = {}
        """The source of each setting by the name that was used, in words for the user."""

    def take_all(
        self, sources: Sources, environment: Mapping[str, str], *, elsewhere: Iterable[str] = ()
    ) -> None:
        """Read every source, the strongest last. `elsewhere` are settings of other servers, which
        the environment may contain too. Raises SettingsError."""
        if sources.path is not None:
            for name, value in config_file.read(sources.path).items():
                self.put(name, value, str(sources.path))
        self._take_environment(environment, {*OTHER_VARIABLES, *map(str.upper, elsewhere)})
        self._take_changes(sources.changes)

    def _take_environment(self, environment: Mapping[str, str], others: set[str]) -> None:
        for variable, value in environment.items():
            name = variable.removeprefix(PREFIX)
            if name == variable or not value or value.startswith(_SERVICE_LINKS):
                continue
            if self._known.get(name.lower()) == name.lower():
                self.put(name.lower(), value, variable)
            elif name not in others and (near := suggestion(name, set(self._known.values()))):
                log.warning(
                    "setting.unknown",
                    extra={"variable": variable, "did_you_mean": PREFIX + near.upper()},
                )

    def _take_changes(self, changes: tuple[str, ...]) -> None:
        problems: list[str] = []
        for change in changes:
            name, sign, value = (part.strip() for part in change.partition("="))
            if not sign or not name:
                shown = masked(name, repr(change))
                problems.append(f"invalid --set {shown}; use --set NAME=VALUE")
            elif name not in self._known:
                near = suggestion(name, self._known)
                hint = f"did you mean {near!r}?" if near else "see docs/configuration.md"
                problems.append(f"unknown setting {name!r} in --set ({hint})")
            else:
                self.put(name, value, "--set")
        if problems:
            raise SettingsError(problems)

    def put(self, name: str, value: object, source: str) -> None:
        """Set a value, overriding an earlier source whichever name that source used."""
        for other in [one for one in self.values if self._meaning(one) == self._meaning(name)]:
            del self.values[other]
        self.values[name] = value
        self._sources[name] = source

    def _meaning(self, name: str) -> str:
        return self._known.get(name, name)

    def source_of(self, setting: str) -> str | None:
        """The source of a setting, whichever name was used; None if it was not set."""
        found = (name for name in self.values if self._meaning(name) == setting)
        return next((self._sources[name] for name in found), None)

    @contextmanager
    def located(self) -> Generator[None]:
        """Add the source of each setting to the SettingsError raised in this block."""
        try:
            yield
        except SettingsError as error:
            raise SettingsError([self._placed(one) for one in error.problems]) from None

    def _placed(self, problem: str) -> str:
        """A problem starts with a name of the setting, which may differ from the one that was
        used."""
        source = self.source_of(self._meaning(problem.partition(" = ")[0]))
        return problem if source is None else f"{problem} (from {source})"

    def reject_unknown(self, names: Iterable[str], reason: Callable[[str], str]) -> None:
        """Raise SettingsError for unknown settings that must not be ignored; `reason` returns why,
        or nothing."""
        problems = [
            f"{name} = {self.values[name]!r}: {why} (from {self._sources[name]})"
            for name in sorted(names)
            if (why := reason(name))
        ]
        if problems:
            raise SettingsError(problems)

    def warn_unknown(self, names: Iterable[str]) -> None:
        """Log unknown settings: misspelt, or only known to RocketMQ."""
        for name in sorted(names):
            near = suggestion(name, self._known)
            log.warning(
                "setting.unknown",
                extra={"setting": name, "file": self._sources[name]}
                | ({"did_you_mean": near} if near else {}),
            )
