"""The meaning of the columns of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kedrl_dask.utils.checks import check_word, has_control_characters, is_word, shown

MissingPolicy = Literal["refuse", "drop", "impute"]
MISSING_POLICIES: tuple[MissingPolicy, ...] = ("refuse", "drop", "impute")
#: Keys of a mapping that name one column each, and those that may name several.
SINGLE, SEVERAL = ("episode", "step", "time", "terminated", "truncated"), ("state", "action", "reward")


@dataclass(frozen=True)
class Columns:
    """The columns of a table by their meaning.

    ``order`` holds steps, which rise by one, or times, which merely rise. ``terminated`` and ``truncated``
    are flags of the last row of an episode, which ended, or was cut off.
    """

    episode: str  # integers, or any text
    order: str
    has_steps: bool
    state: tuple[str, ...]
    action: tuple[str, ...]
    reward: tuple[str, ...]
    categorical: tuple[str, ...]  # state columns that are encoded by their levels
    terminated: str | None
    truncated: str | None
    missing: Mapping[str, MissingPolicy]  # treatment of missing values, by column

    @classmethod
    def build(
        cls,
        given: Mapping[str, object],
        categorical: Sequence[str] | str = (),
        missing: MissingPolicy | Mapping[str, MissingPolicy] = "refuse",
    ) -> Columns:
        """Check a mapping given by a user."""
        if not isinstance(given, Mapping):
            raise ValueError(f"columns must be a dict of column names by meaning, got {shown(given)}")
        for key in given:
            check_word("columns: a key", key, (*SINGLE, *SEVERAL))
        if ("step" in given) == ("time" in given):
            raise ValueError("columns: give either 'step', which rises by one, or 'time', which merely rises")
        for key in ("episode", *SEVERAL):
            if key not in given:
                raise ValueError(f"columns: {key!r} is missing; name its columns")
        single = {key: _name(key, given.get(key)) for key in SINGLE}
        several = {key: _names(key, given[key]) for key in SEVERAL}
        used = [name for name in single.values() if name] + [n for names in several.values() for n in names]
        repeated = next((name for name in used if used.count(name) > 1), None)
        if repeated is not None:
            raise ValueError(f"columns: {repeated!r} is named twice; a column has one meaning")
        levels = _names("categorical", categorical) if len(categorical) else ()
        for name in levels:
            if name not in several["state"]:
                raise ValueError(
                    f"categorical: {name!r} is not a state column; only those are encoded by levels"
                )
        return cls(
            episode=str(single["episode"]),
            order=str(single["step"] or single["time"]),
            has_steps="step" in given,
            **several,
            categorical=levels,
            terminated=single["terminated"],
            truncated=single["truncated"],
            missing=_missing(missing, used, several["state"]),
        )

    @property
    def names(self) -> list[str]:
        """Names of all columns that are read."""
        flags = [name for name in (self.terminated, self.truncated) if name]
        return [self.episode, self.order, *self.state, *self.action, *self.reward, *flags]

    @property
    def numeric(self) -> list[str]:
        """Names of the columns of numbers."""
        state = [name for name in self.state if name not in self.categorical]
        return [*state, *self.action, *self.reward]


def _missing(
    given: MissingPolicy | Mapping[str, MissingPolicy], used: list[str], state: tuple[str, ...]
) -> dict[str, MissingPolicy]:
    by_column = dict(given) if isinstance(given, Mapping) else {}
    for name in by_column:
        if name not in used:
            raise ValueError(f"missing: {shown(name)} is not one of the columns; name one of {shown(used)}")
    policies = {name: by_column.get(name, "refuse") if isinstance(given, Mapping) else given for name in used}
    for name, policy in policies.items():
        check_word("missing", policy, MISSING_POLICIES)
        if is_word(policy, "impute") and name not in state:
            if name in by_column:
                raise ValueError(f"missing: {name!r} is not a state column, and only those can be imputed")
            policies[name] = "refuse"
    return policies


def _name(key: str, given: object) -> str | None:
    if given is None and key != "episode":
        return None
    if not isinstance(given, str) or not given or has_control_characters(given):
        raise ValueError(f"columns: {key} must be the name of a column, got {shown(given)}")
    return given


def _names(key: str, given: object) -> tuple[str, ...]:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or not names:
        raise ValueError(f"columns: {key} must be a column name or a list of them, got {shown(given)}")
    return tuple(str(_name(key, name or "")) for name in names)
