"""Arrow, which has no annotations: the modules used here, and names for its types."""

from importlib import import_module
from typing import Any, TypeAlias

pa: Any = import_module("pyarrow")
pc: Any = import_module("pyarrow.compute")

Array: TypeAlias = Any
Batch: TypeAlias = Any
Schema: TypeAlias = Any
Kind: TypeAlias = Any
"""Arrow's data types."""
