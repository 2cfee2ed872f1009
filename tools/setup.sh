#!/usr/bin/env bash
# Makes the environment that `make demo` and `make test` need: .venv with the project in it, Java for Spark,
# and (with --browser) Chromium for the page tests, and Node with nats.js. A second run finds everything in place and returns at once.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3.13 python3.12 python3.11 python3.14 python3.15 python3 python; do
        [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 || continue
        # Debian's Python has neither venv nor pip without the package python3-venv.
        "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
        command -v "$candidate"
        return
    done
    return 1
}

# install_packages PACKAGE...: by apt where that is possible, else a sentence that says what to install.
install_packages() {
    command -v apt-get >/dev/null 2>&1 || fail "missing: $missing; there is no apt-get here: install by hand and run again"
    local apt=(apt-get)
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null 2>&1 || fail "missing: $missing; run as root: apt-get install $*"
        apt=(sudo apt-get)
    fi
    say "installing $missing with apt-get"
    "${apt[@]}" update -qq >/dev/null || say "apt-get update failed; trying with the package lists that are there"
    # Which Java there is may be known only now.
    set -- "${@/#openjdk-*/$(java_package)}"
    DEBIAN_FRONTEND=noninteractive "${apt[@]}" install -y -qq --no-install-recommends "$@" >/dev/null \
        || fail "could not install $missing; try by hand: apt-get install $*"
}

# lack WHAT PACKAGE...: note a program that is not here, and its packages, to be installed all at once.
lack() {
    missing="${missing:+$missing, }$1"
    packages+=("${@:2}")
}

java_is_there() {
    local java=java
    [ -n "${JAVA_HOME:-}" ] && java="$JAVA_HOME/bin/java"
    command -v "$java" >/dev/null 2>&1 || return 1
    local version
    version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
    [ "${version:-0}" -ge 17 ]
}

java_package() { # Debian 13 has no Java 17.
    local version
    for version in 17 21 25; do
        [ -z "$(apt-cache show "openjdk-$version-jre-headless" 2>/dev/null)" ] || break
        [ "$version" != 25 ] || version=17
    done
    echo "openjdk-$version-jre-headless"
}

chromium_is_there() {
    command -v chromium >/dev/null 2>&1 || command -v chromium-browser >/dev/null 2>&1 \
        || command -v google-chrome >/dev/null 2>&1
}

node_is_there() {
    command -v node >/dev/null 2>&1 && command -v npm >/dev/null 2>&1
}

install_nats_js() {
    local stamp=tests/js/node_modules/.jetlake-setup wanted
    wanted=$(cksum <tests/js/package-lock.json)
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && return
    say "installing nats.js with npm"
    (cd tests/js && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null) \
        || fail "npm could not install the packages of tests/js; see its lines above"
    printf '%s\n' "$wanted" >"$stamp"
}

make_environment() {
    local stamp=.venv/.jetlake-setup wanted
    wanted=$(cksum <pyproject.toml)
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && [ -x .venv/bin/jetlake ] && return
    local python
    python=$(find_python) || fail "needs Python 3.11 or newer; install one, or name it: make setup PYTHON=/path/to/python"
    say "making .venv with $("$python" --version); the first time takes a few minutes"
    [ -x .venv/bin/python ] || "$python" -m venv .venv || fail "could not make .venv with $python"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' \
        || fail "pip could not install the project's packages; see its lines above"
    # Compiled once, so that the server starts as quickly the first time as ever after.
    .venv/bin/python -m compileall -q src || true
    printf '%s\n' "$wanted" >"$stamp"
}

# What only root can install comes first: nobody waits for pip to be told of it.
missing=
packages=()
[ -x .venv/bin/python ] || find_python >/dev/null || lack "Python 3.11 or newer with venv" python3 python3-venv
java_is_there || lack "Java 17" "$(java_package)"
if [ "${1:-}" = --browser ]; then
    chromium_is_there || lack "Chromium" chromium
    node_is_there || lack "Node" nodejs npm
fi
[ -z "$missing" ] || install_packages "${packages[@]}"
make_environment
[ "${1:-}" != --browser ] || install_nats_js
