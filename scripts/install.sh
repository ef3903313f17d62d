#!/bin/sh
# Makes the virtual environment and installs the exact versions of constraints.txt into it.
# Usage: scripts/install.sh VENV run|dev       (dev adds what the tests and checks need)
set -eu
venv=$1
kind=$2
. "$(dirname "$0")/system_packages.sh"

fail() {
    printf 'Cannot install: %s\n' "$*" >&2
    exit 1
}

fits() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null
}

find_python() {
    for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11; do
        if command -v "$candidate" >/dev/null 2>&1 && fits "$candidate"; then
            command -v "$candidate"
            return 0
        fi
    done
    return 1
}

# Runs a command with its output in a log, saying every 20 s that it is still at work.
patiently() {
    log=$1
    shift
    "$@" >>"$log" 2>&1 &
    worker=$!
    trap 'kill $worker 2>/dev/null; exit 130' INT TERM HUP
    waited=0
    while kill -0 "$worker" 2>/dev/null; do
        sleep 1
        waited=$((waited + 1))
        if [ $((waited % 20)) -eq 0 ]; then echo "  … $waited s"; fi
    done
    trap - INT TERM HUP
    wait "$worker"
}

python=$(find_python) || fail "Python 3.11, 3.12 or 3.13 is needed and none is on the path; \
install one, or name it: make PYTHON=/path/to/python3 …"

# pyspark alone takes 0.5 GB; a half-filled disk would only show deep inside of pip.
needed_mb=2500
if [ ! -e "$venv/.stamp-run" ] && [ ! -e "$venv/.stamp-dev" ]; then
    free_mb=$(df -Pk . | awk 'NR == 2 { print int($4 / 1024) }')
    [ "$free_mb" -ge "$needed_mb" ] ||
        fail "$needed_mb MB of disk are needed here and $free_mb MB are free."
fi

if [ ! -x "$venv/bin/python" ] || ! fits "$venv/bin/python"; then
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        # Debian and Ubuntu keep both modules in a package of their own.
        echo "Python's venv module is missing: installing the system's package python3-venv …"
        system_install python3-venv || true
        "$python" -c 'import ensurepip, venv' 2>/dev/null ||
            fail "the venv module of $python is missing; install it (Debian, Ubuntu: apt-get \
install python3-venv) and repeat."
    fi
    echo "Making the virtual environment $venv with $("$python" --version) …"
    rm -rf "$venv"
    "$python" -m venv "$venv" || fail "no virtual environment could be made in $venv."
fi

case $kind in
dev) what='.[dev]' ;;
*) what='.[demo]' ;;
esac
log="$venv/install.log"
: >"$log"
echo "Installing the packages of constraints.txt into $venv (about 1.2 GB, a minute or two) …"
if ! patiently "$log" "$venv/bin/python" -m pip install --disable-pip-version-check --no-input \
    --progress-bar off --compile -c constraints.txt -e "$what"; then
    reason=$(grep -E '^(ERROR|error|OSError|\[Errno)' "$log" | tail -n 1)
    fail "pip ended with an error (${reason:-no network?}); all of it is in $log, and repeating \
goes on from what is there."
fi
# Its own list of requirements keeps it from being installed with the rest: it asks for a protobuf
# older than Dagster and Spark Connect allow, and works with the newer one.
if [ "$kind" = dev ] && ! patiently "$log" "$venv/bin/python" -m pip install --no-input \
    --disable-pip-version-check --progress-bar off --compile -c constraints.txt --no-deps \
    aliyun-log-python-sdk; then
    fail "the SDK of LogHub could not be installed; all of it is in $log."
fi
# Without bytecode, each of Dagster's processes would spend a second more on its start.
"$venv/bin/python" -m compileall -q dagster_leasehold/*.py dagster_leasehold/*/ ||
    fail "the project's own modules do not compile."
touch "$venv/.stamp-run" "$venv/.stamp-$kind"
echo "Installed."
