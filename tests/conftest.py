"""How hypothesis works here; nothing else."""

import os

from hypothesis import settings

_EXAMPLES = 100
_EXAMPLES_TORTURE = 5_000

settings.register_profile(
    "tianzhou",
    # A shared machine stalls for longer than any deadline worth having; pytest limits the whole.
    deadline=None,
    # In CI a run must say something about the change, not about its luck.
    derandomize="CI" in os.environ,
    print_blob=True,
    max_examples=_EXAMPLES_TORTURE if os.environ.get("TIANZHOU_TORTURE") else _EXAMPLES,
)
settings.load_profile("tianzhou")
