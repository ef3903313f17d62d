#!/bin/sh
# Sees to it that the servers of MariaDB and MySQL, Chromium, Prometheus and a Kinesis server are here, which
# the tests start themselves.
set -eu
. "$(dirname "$0")/system_packages.sh"

# Database servers, Spark and Dagster write some gigabytes in temporary folders while tests run.
temporary=${TMPDIR:-/tmp}
free_kib=$(df -Pk "$temporary" | awk 'NR == 2 { print $4 }')
if [ "$free_kib" -lt 5242880 ]; then
    printf 'Cannot run the tests: %s has %s MiB free, and they need 5,120 MiB: make room, or set %s.\n' \
        "$temporary" "$((free_kib / 1024))" 'TMPDIR to a folder on another disk' >&2
    exit 1
fi

PATH=$PATH:/usr/sbin:/usr/local/sbin:/opt/homebrew/bin

# Usage: need WHAT 'PROGRAM…' 'PACKAGE…'…
# Any of the programs will do; of the groups of packages, the first that can be had is installed.
need() {
    what=$1
    programs=$2
    shift 2
    if here; then return 0; fi
    echo "$what is missing: installing the system's package …"
    system_install "$@" || true
    here || {
        printf 'Cannot run the tests: %s could not be installed; install it (%s) and repeat.\n' \
            "$what" "Debian, Ubuntu: apt-get install $1" >&2
        exit 1
    }
}

here() {
    for program in $programs; do
        if command -v "$program" >/dev/null 2>&1; then return 0; fi
    done
    return 1
}

# The core packages are the programs alone: nothing is started when they are installed. What makes
# a new database reads its options with a program of the client's.
mariadb() {
    need "$1" "$2" 'mariadb-server-core mariadb-client-core' \
        'mariadb-server-core-10.6 mariadb-client-core-10.6' mariadb-server mariadb
}
mariadb "MariaDB's server" 'mariadbd mysqld'
mariadb "MariaDB's client" 'my_print_defaults'
# Without MySQL's own server the tests that need it are skipped and say so.
"$(dirname "$0")/fetch_mysql.sh" || true
need "Chromium" 'chromium chromium-browser google-chrome' chromium chromium-browser
# Without Prometheus the tests that need it are skipped and say so.
command -v promtool >/dev/null 2>&1 || system_install prometheus || true
# kinesalite comes by npm, into a cache folder; without it the tests that need it are skipped and
# say so. Node is the machine's own, or the one that the type checker's package brings.
"$(dirname "$0")/../.venv/bin/python" -m tests.kinesis_servers
