# Sourced by the scripts that people run: finds a Python, makes .venv with the project in it, and sees to the
# system packages that a step needs. Prints one line for each thing it does and nothing when all is there.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
venv="$root/.venv"
unset PYTHONDONTWRITEBYTECODE  # commands start in half the time when their modules are compiled once

fail() {
    printf 'openshelf: %s\n' "$*" >&2
    exit 1
}

# The first Python of at least 3.11 that really runs (a version manager's stub may only print an error).
find_python() {
    local name
    for name in python3 python3.13 python3.12 python3.11; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            command -v "$name"
            return 0
        fi
    done
    return 1
}

# need_packages NAME…: Debian or Ubuntu packages; installed when root, named when not.
need_packages() {
    local name missing=()
    for name in "$@"; do
        dpkg-query -W -f '${Status}' "$name" 2>/dev/null | grep -q 'install ok installed' || missing+=("$name")
    done
    [ "${#missing[@]}" -gt 0 ] || return 0
    if [ "$(id -u)" -ne 0 ]; then
        fail "these system packages are missing: ${missing[*]}. Install them with: sudo apt-get install ${missing[*]}"
    fi
    command -v apt-get >/dev/null || fail "these system packages are missing: ${missing[*]}; there is no apt-get here to install them."
    printf 'Installing system packages: %s\n' "${missing[*]}" >&2
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >/dev/null || fail "apt-get update failed; look at the system's package sources."
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null || fail "apt-get install ${missing[*]} failed."
}

# need_venv EXTRAS: .venv holds the project with these extras, installed again only when what defines it changed.
need_venv() {
    local extras=$1 python stamp
    python=$(find_python) || {
        need_packages python3 python3-venv
        python=$(find_python) || fail "Python 3.11 or newer is needed; on Ubuntu 22.04 install the package python3.11 and python3.11-venv."
    }
    "$python" -c 'import venv, ensurepip' >/dev/null 2>&1 || need_packages "$(basename "$(readlink -f "$python")")-venv"
    stamp=$( (cat "$root/pyproject.toml" "$root/constraints.txt"; echo "$extras"; "$python" -V) | sha256sum | cut -c1-64)
    [ "$(cat "$venv/.openshelf-stamp" 2>/dev/null)" = "$stamp" ] && return 0
    printf 'Installing openshelf[%s] into .venv (a minute or two, once)\n' "$extras" >&2
    "$venv/bin/python" -c '' 2>/dev/null || "$python" -m venv --clear "$venv" || fail "python -m venv failed."
    "$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$venv/bin/python" -m ensurepip >/dev/null || fail "pip is missing in .venv; remove it and try again."
    "$venv/bin/python" -m pip install -q --disable-pip-version-check --root-user-action ignore \
        -c "$root/constraints.txt" -e "$root[$extras]" || fail "pip could not install openshelf[$extras]; its messages are above."
    printf '%s\n' "$stamp" > "$venv/.openshelf-stamp"
}
