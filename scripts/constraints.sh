#!/bin/sh
# Writes constraints.txt: the exact versions that a fresh environment gets today.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT INT TERM
echo "Installing the newest allowed versions into a temporary environment …"
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --disable-pip-version-check --no-input -q '.[dev]'
# See scripts/install.sh: its requirements contradict those of Dagster and Spark Connect.
"$folder/venv/bin/python" -m pip install --disable-pip-version-check --no-input -q --no-deps \
    aliyun-log-python-sdk
{
    echo "# The exact versions that the tests pass with. Regenerate with: make constraints"
    "$folder/venv/bin/python" -m pip freeze --exclude dagster-leasehold
} >"$folder/constraints.txt"
mv "$folder/constraints.txt" constraints.txt
echo "Wrote constraints.txt; run make check before you commit it."
