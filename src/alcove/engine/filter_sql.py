"""Compiles filters and scopes into SQL predicates on `versions v`.

The structure is common; each database adds how it reads JSON and how it compares a field.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from alcove.core.filters import Exists, FieldTest, Filter, Negation, OneOf, Range
from alcove.engine.rows import Scope
from alcove.engine.statements import Params


class FilterCompiler(ABC):
    """Turns a scope into a predicate; subclasses spell the tests of one field, which SQL calls `f`.

    Each method appends the parameters of the predicate that it returns.
    """

    plain_test_is_exact = False
    """True if `plain_test` finds all matches, and not only the most common ones."""

    @abstractmethod
    def fields(self, column: str) -> str:
        """Returns the fields of a JSON column of `v` as a table with `key` and `value`."""

    @abstractmethod
    def one_of(self, test: OneOf, params: Params) -> str:
        """True if the value of `f` equals one of some scalars, or is an array with one. Never NULL."""

    @abstractmethod
    def range(self, test: Range, params: Params) -> str:
        """True if the value of `f` is on one side of a bound. Never NULL."""

    @abstractmethod
    def plain_test(self, name: str, test: FieldTest, params: Params) -> str | None:
        """Returns a test that reads only one attribute; None if there is no such test.

        Nearly all policies require that attributes equal texts. Reading every attribute would cost more than
        the rest of a statement.
        """

    def predicate(self, scope: Scope, params: Params) -> str:
        """Returns the predicate for the versions of a subtree that a scope shows."""
        parts = [self.policy(scope.policy, params)]
        if scope.unowned:
            parts.append("v.owner IS NULL")
        if scope.owner is not None:
            parts.append("(v.owner IS NULL OR v.owner = ?)")
            params.append(scope.owner)
        if scope.written_by is not None:
            parts.append(f"({_written_by(scope.written_by, params)})")
        if scope.unowned_written_by is not None:
            parts.append(f"(v.owner IS NOT NULL OR {_written_by(scope.unowned_written_by, params)})")
        if scope.unindexed:
            parts.append("v.index_text IS NULL")
        parts.append(self.filter(scope.filter, params))
        return " AND ".join(parts)

    def filter(self, filter: Filter, params: Params) -> str:
        """A caller's filter: false only if `Filter.holds` is false for every possible sealed value."""
        if not filter.on_fields:
            return "TRUE"
        attributes, index = (
            f"NOT EXISTS (SELECT 1 FROM {self.fields(column)} f"
            f" WHERE NOT {self._all_tests(filter, params, other='TRUE')}"
            for column in ("attributes", "index_text")
        )
        hidden = f"EXISTS (SELECT 1 FROM {self.fields('attributes')} a WHERE a.key = f.key)"
        return f"{attributes}) AND {index} AND NOT {hidden})"

    def policy(self, filter: Filter, params: Params) -> str:
        """A policy's filter: it applies only to attributes, and an absent one never matches."""
        if not filter.conditions:
            return "TRUE"
        plain_params: Params = []
        plain = [self.plain_test(name, test, plain_params) or "" for name, test in filter.on_fields]
        shortcut = ""
        if all(plain):
            params += plain_params
            shortcut = " AND ".join(plain)
            if self.plain_test_is_exact:
                return shortcut
            shortcut += " OR "
        tests = self._all_tests(filter, params, other="FALSE")
        names = len(filter.by_field())
        return f"({shortcut}(SELECT count(*) FROM {self.fields('attributes')} f WHERE {tests}) = {names})"

    def _all_tests(self, filter: Filter, params: Params, *, other: str) -> str:
        """All conditions on `f` in one expression, so that a row is read only once."""
        cases = []
        for name, tests in filter.by_field().items():
            params.append(name)
            cases.append(f"WHEN ? THEN {' AND '.join(self._test(test, params) for test in tests)}")
        return f"(CASE f.key {' '.join(cases)} ELSE {other} END)"

    def _test(self, test: FieldTest, params: Params) -> str:
        match test:
            case Negation(opposite):
                return f"NOT ({self._test(opposite, params)})"
            case Exists(expected):
                return "TRUE" if expected else "FALSE"
            case OneOf():
                return self.one_of(test, params)
            case Range():
                return self.range(test, params)


def placeholders(count: int) -> str:
    return ", ".join("?" * count)


def _written_by(users: tuple[str | None, ...], params: Params) -> str:
    """True if one of these users wrote a version."""
    # NULL equals nothing; it is added because PostgreSQL refuses an empty list.
    names = [*filter(None, users), None]
    params.extend(names)
    return f'v."user" IN ({placeholders(len(names))})' + ' OR v."user" IS NULL' * (None in users)
