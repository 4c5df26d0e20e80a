#!/bin/sh
# Fills .venv from a lock file, then adds this checkout in editable form: `setup.sh full|core|demo`.
# core and demo add to what is there, so one .venv can grow; where the full set is, it is kept current.
set -eu
python=${PYTHON:-python3}
set=${1:-full}
if [ -e .venv/.ready ]; then set=full; fi
case $set in
  full) lock=requirements.lock ;;
  core | demo) lock=requirements-$set.lock ;;
  *) echo "setup: unknown set '$set'; use full, core or demo" >&2; exit 2 ;;
esac

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "setup: $("$python" --version 2>&1) is too old; Tianzhou needs Python 3.11 or newer." >&2
  echo "setup: name another one, for example: make setup PYTHON=python3.12" >&2
  exit 1
}

if command -v uv >/dev/null 2>&1; then
  echo "setup: filling .venv with uv ($lock)"
  uv venv --quiet --allow-existing --python "$python" .venv
  export VIRTUAL_ENV="$PWD/.venv"
  if [ "$set" = full ]; then
    uv pip sync --quiet --require-hashes "$lock"
  else
    uv pip install --quiet --require-hashes -r "$lock"
  fi
  uv pip install --quiet --no-deps -e .
else
  echo "setup: filling .venv with pip ($lock); the first time takes a few minutes"
  "$python" -m venv .venv
  # Show only errors: warnings of old pip versions are harmless.
  .venv/bin/python -m pip install --disable-pip-version-check -qq --require-hashes -r "$lock"
  .venv/bin/python -m pip install --disable-pip-version-check -qq --no-deps -e .
fi

# The full set serves every target.
if [ "$set" = full ]; then touch .venv/.ready .venv/.core .venv/.demo; else touch ".venv/.$set"; fi
