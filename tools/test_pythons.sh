#!/usr/bin/env bash
# Builds wheel and sdist, installs each into a fresh environment of every Python from 3.11 to 3.15 that is here, and
# stores a message with it. A Python that is not here is named; the exit status is not 0 when one failed, or none is here.
set -u
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
.venv/bin/python tools/release.py --no-install || exit 1
cp build/release/* "$folder"
tested=0
failed=0
for version in 3.11 3.12 3.13 3.14 3.15; do
    if ! "python$version" -c '' 2>/dev/null; then
        echo "python$version: not here"
        continue
    fi
    for package in "$folder"/*.whl "$folder"/*.tar.gz; do
        environment="$folder/$version-${package##*.}"
        if "python$version" -m venv "$environment" \
            && "$environment/bin/pip" install --quiet --disable-pip-version-check "$package[client,server]" \
            && "$environment/bin/python" tools/smoke.py; then
            echo "python$version: ${package##*/} ok"
            tested=$((tested + 1))
        else
            echo "python$version: ${package##*/} FAILED"
            failed=1
        fi
    done
done
[ "$tested" -gt 0 ] && exit "$failed"
exit 1
