"""The syntax tree of an expression, before any evaluation."""

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias


class Comparison(Enum):
    EQUAL = "="
    UNEQUAL = "<>"
    GREATER = ">"
    GREATER_EQUAL = ">="
    LESS = "<"
    LESS_EQUAL = "<="


class Search(Enum):
    CONTAINS = "CONTAINS"
    STARTS_WITH = "STARTSWITH"
    ENDS_WITH = "ENDSWITH"


@dataclass(frozen=True, slots=True)
class Property:
    name: str


@dataclass(frozen=True, slots=True)
class Text:
    value: str


@dataclass(frozen=True, slots=True)
class Whole:
    """Java's Integer where 32 bits hold it, else a Long."""

    value: int


@dataclass(frozen=True, slots=True)
class Real:
    """Java's Double. Never zero, infinite or NaN: such literals are refused."""

    value: float


@dataclass(frozen=True, slots=True)
class Truth:
    """TRUE, FALSE or NULL."""

    value: bool | None


@dataclass(frozen=True, slots=True)
class Negate:
    operand: "Node"


@dataclass(frozen=True, slots=True)
class Not:
    operand: "Node"


@dataclass(frozen=True, slots=True)
class And:
    """A whole chain: two or more, so that a long chain is not a deep tree."""

    operands: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Or:
    operands: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Compare:
    comparison: Comparison
    left: "Node"
    right: "Node"


@dataclass(frozen=True, slots=True)
class IsNull:
    operand: "Node"
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Between:
    operand: "Node"
    low: "Node"
    high: "Node"
    negated: bool = False


@dataclass(frozen=True, slots=True)
class In:
    left: Property
    values: tuple[str, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Find:
    search: Search
    operand: "Node"
    wanted: str
    negated: bool = False


Literal: TypeAlias = Text | Whole | Real | Truth
Condition: TypeAlias = Truth | Not | And | Or | Compare | IsNull | Between | In | Find
"""Nodes that evaluate to true, false or null."""
Node: TypeAlias = Property | Text | Whole | Real | Negate | Condition


def children(node: Node) -> tuple[Node, ...]:
    match node:
        case Property() | Text() | Whole() | Real() | Truth():
            return ()
        case Negate(operand) | Not(operand) | IsNull(operand) | Find(operand=operand):
            return (operand,)
        case And(operands) | Or(operands):
            return operands
        case Compare(_, left, right):
            return left, right
        case Between(operand, low, high):
            return operand, low, high
        case In(left):
            return (left,)


def property_names(node: Node) -> list[str]:
    """The properties that an expression reads, in order, as often as it names them."""
    if isinstance(node, Property):
        return [node.name]
    return [name for child in children(node) for name in property_names(child)]
