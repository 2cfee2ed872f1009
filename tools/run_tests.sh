#!/usr/bin/env bash
# Runs the suite in three processes side by side: the tests that start a Spark of their own, those that share one Spark
# session, and all others. All are shown, one after the other; the exit status is not 0 when one failed.
set -u
cd "$(dirname "$0")/.."
python=.venv/bin/python
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

"$python" -m pytest -q tests/spark -m own_process "$@" >"$logs/own" 2>&1 &
own=$!
"$python" -m pytest -q tests/spark -m "not own_process" "$@" >"$logs/shared" 2>&1 &
shared=$!
"$python" -m pytest -q --ignore tests/spark "$@"
failed=$?
echo "tests on a Spark session:"
wait "$shared" || failed=1
cat "$logs/shared"
echo "tests on Spark in processes of its own:"
wait "$own" || failed=1
cat "$logs/own"
exit $((failed != 0))
