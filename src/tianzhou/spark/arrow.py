"""Arrow, which has no annotations: the two modules we use, and names for what they give."""

from importlib import import_module
from typing import Any, TypeAlias

pa: Any = import_module("pyarrow")
pc: Any = import_module("pyarrow.compute")

Array: TypeAlias = Any
Batch: TypeAlias = Any
Schema: TypeAlias = Any
Kind: TypeAlias = Any
"""Arrow's data types."""
