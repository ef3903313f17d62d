#!/bin/sh
# Sees to it that MariaDB's server and Chromium are here, which the tests start themselves.
set -eu
. "$(dirname "$0")/system_packages.sh"
PATH=$PATH:/usr/sbin:/usr/local/sbin:/opt/homebrew/bin

# Usage: need WHAT 'PROGRAM…' PACKAGE…
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

# The core package is the server program alone: nothing is started when it is installed.
need "MariaDB's server" 'mariadbd mysqld' mariadb-server-core mariadb-server-core-10.6 mariadb-server mariadb
need "Chromium" 'chromium chromium-browser google-chrome' chromium chromium-browser
