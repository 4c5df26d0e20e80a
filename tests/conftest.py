"""How hypothesis works here, and which signals the processes of tests can be stopped with."""

import os
import signal

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

# Whoever runs the tests in the background lets Ctrl-C be ignored, and processes inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
