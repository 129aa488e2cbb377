#!/bin/sh
# Build the virtual environment in $1 from the hashed pins in $2 (dev.txt) beside this file, then install Outrider editable.
set -eu
venv=$1
pins=${2:-dev.txt}
here=$(dirname "$0")
: "${PYTHON:=python3}"

if "$PYTHON" -c 'import ensurepip' 2>/dev/null; then
    "$PYTHON" -m venv "$venv"
    pip="$venv/bin/python -m pip"
elif "$PYTHON" -c 'import pip' 2>/dev/null; then
    "$PYTHON" -m venv --without-pip "$venv"
    pip="$PYTHON -m pip --python $venv/bin/python"
else
    echo "$PYTHON has neither ensurepip nor pip: install the package python3-venv, then run make again." >&2
    exit 1
fi

export PIP_DISABLE_PIP_VERSION_CHECK=1
echo "    installing pinned requirements"
$pip install --quiet --require-hashes --no-deps -r "$here/$pins"
echo "    installing outrider"
$pip install --quiet --no-deps --no-build-isolation -e "$here/.."
