"""The types of the fixture `run`, which tests name in their signatures."""

from collections.abc import Callable, Coroutine
from typing import Any

Body = Callable[[], Coroutine[Any, Any, None]]
Run = Callable[[Body], None]
