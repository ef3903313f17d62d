#!/bin/sh
# Fetches Oracle's MySQL server for the tests, once, into a cache folder. Nothing is installed: the
# packages of Debian's unstable suite are unpacked there, their C library included, and the system's
# own apt is asked with folders of its own.
# Usage: scripts/fetch_mysql.sh        (prints one line and ends with 1 where it cannot be had)
set -eu
PATH=$PATH:/usr/sbin:/usr/local/sbin
cache=${XDG_CACHE_HOME:-$HOME/.cache}/leasehold/mysql
package=mysql-server-core
suite=sid

missing() {
    echo "$1" >"$cache/missing"
    echo "Some tests of MySQL will be skipped: $1." >&2
    exit 1
}

# A server of the machine's own will do, if it is MySQL and new enough; tests/mysql.py looks for it
# by the same rule.
system_server() {
    version=$(mysqld --version 2>/dev/null) || return 1
    case $version in
    *MariaDB*) return 1 ;;
    *' Ver '8.[0-3].* | *' Ver '[1-7].*) return 1 ;;
    esac
}

# The address that this system's apt takes its own release from.
archive() {
    . /etc/os-release
    apt-get indextargets --format '$(REPO_URI) $(CODENAME) $(COMPONENT)' 'Created-By: Packages' |
        awk -v suite="${VERSION_CODENAME:-$suite}" '$2 == suite && $3 == "main" { print $1; exit }'
}

# apt with folders of its own, so that the system's lists, packages and settings stay as they are.
own_apt() {
    apt-get -q -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=/dev/null \
        -o Dir::Etc::preferencesparts=/dev/null -o Dir::State::lists="$work/lists" \
        -o Dir::State::status="$work/status" -o Dir::Cache="$work/cache" \
        -o APT::Sandbox::User=root -o Acquire::Languages=none -o Acquire::Retries=1 \
        -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20 "$@"
}

mkdir -p "$cache"
exec 9>"$cache/lock"
if command -v flock >/dev/null 2>&1; then flock 9; fi
if [ -e "$cache/installed" ] || system_server; then exit 0; fi
for program in apt-get dpkg-deb; do
    command -v "$program" >/dev/null 2>&1 ||
        missing "there is no MySQL of 8.4 or newer here, and it is fetched on Debian only"
done
[ "$(. /etc/os-release && echo "${ID:-}")" = debian ] ||
    missing "there is no MySQL of 8.4 or newer here, and it is fetched on Debian only"
uri=$(archive 2>/dev/null) && [ -n "$uri" ] || missing "apt names no archive of this release"

echo "Fetching MySQL's server for the tests (about 80 MB, once) …"
work=$(mktemp -d "$cache/fetching.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/root"
: >"$work/status"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri $suite main" \
    >"$work/sources.list"
log=$cache/fetch.log
own_apt update >"$log" 2>&1 || missing "apt could not read the suite $suite (see $log)"
own_apt install -y --download-only --no-install-recommends $package >>"$log" 2>&1 ||
    missing "apt could not fetch $package (see $log)"
for archive in "$work"/cache/archives/*.deb; do
    dpkg-deb -x "$archive" "$work/root" >>"$log" 2>&1 || missing "$archive cannot be unpacked"
done
rm -rf "$cache/root" "$cache/data" "$cache/missing"
mv "$work/root" "$cache/root"
touch "$cache/installed"
