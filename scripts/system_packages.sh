# Functions to install a package with the system's package manager; sourced by the other scripts.

# Runs a command as root: directly, or through sudo where that asks for no password.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
        sudo -n "$@"
    else
        return 1
    fi
}

# Installs the first group of packages that the system's package manager has; an argument a group.
# shellcheck disable=SC2086 # the names of a group are words on purpose
system_install() {
    if command -v apt-get >/dev/null 2>&1; then
        as_root apt-get update -q >/dev/null 2>&1 || true
        for packages in "$@"; do
            if as_root env DEBIAN_FRONTEND=noninteractive \
                apt-get install -y -q --no-install-recommends $packages >/dev/null 2>&1; then
                return 0
            fi
        done
    elif command -v dnf >/dev/null 2>&1; then
        for packages in "$@"; do
            if as_root dnf install -y -q $packages >/dev/null 2>&1; then return 0; fi
        done
    elif command -v brew >/dev/null 2>&1; then
        for packages in "$@"; do
            if brew install --quiet $packages >/dev/null 2>&1; then return 0; fi
        done
    fi
    return 1
}
