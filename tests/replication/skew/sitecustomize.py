"""Loaded by Python at the start of a process, to make its clock wrong by CLOCK_SKEW_S."""

import os
import time

_SKEW_NS = int(float(os.environ["CLOCK_SKEW_S"]) * 1e9)
_time_ns = time.time_ns


def _skewed_ns() -> int:
    return _time_ns() + _SKEW_NS


time.time_ns = _skewed_ns
time.time = lambda: _skewed_ns() / 1e9
