#!/bin/sh
# Fills .venv from requirements.lock, then adds this checkout in editable form.
set -eu
python=${PYTHON:-python3}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "setup: $("$python" --version 2>&1) is too old; Tianzhou needs Python 3.11 or newer." >&2
  echo "setup: name another one, for example: make setup PYTHON=python3.12" >&2
  exit 1
}

if command -v uv >/dev/null 2>&1; then
  echo "setup: filling .venv with uv"
  uv venv --quiet --allow-existing --python "$python" .venv
  VIRTUAL_ENV=$PWD/.venv uv pip sync --quiet --require-hashes requirements.lock
  VIRTUAL_ENV=$PWD/.venv uv pip install --quiet --no-deps -e .
else
  echo "setup: filling .venv with pip; the first time takes a few minutes"
  "$python" -m venv .venv
  # Show only errors: warnings of old pip versions are harmless.
  .venv/bin/python -m pip install --disable-pip-version-check -qq --require-hashes -r requirements.lock
  .venv/bin/python -m pip install --disable-pip-version-check -qq --no-deps -e .
fi
