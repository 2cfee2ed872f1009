#!/usr/bin/env bash
# Runs the suite in five processes side by side: the tests that start a Spark of their own, those that share one Spark
# session, two halves of those that mostly wait for servers, and all others. All are shown, one after the other; the exit
# status is not 0 when one failed.
set -u
cd "$(dirname "$0")/.."
python=.venv/bin/python
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

"$python" -m pytest -q --timeout 300 tests/spark -m own_process "$@" >"$logs/own" 2>&1 &
own=$!
"$python" -m pytest -q --timeout 300 tests/spark -m "not own_process" "$@" >"$logs/shared" 2>&1 &
shared=$!
"$python" -m pytest -q tests/conformance/test_c*.py "$@" >"$logs/clients" 2>&1 &
clients=$!
"$python" -m pytest -q tests/conformance/test_[!c]*.py tests/cluster "$@" >"$logs/servers" 2>&1 &
servers=$!
"$python" -m pytest -q --ignore tests/spark --ignore tests/conformance --ignore tests/cluster "$@"
failed=$?
echo "tests of client, command and core against both servers:"
wait "$clients" || failed=1
cat "$logs/clients"
echo "tests of streams and consumers against both servers, and of a cluster:"
wait "$servers" || failed=1
cat "$logs/servers"
echo "tests on a Spark session:"
wait "$shared" || failed=1
cat "$logs/shared"
echo "tests on Spark in processes of its own:"
wait "$own" || failed=1
cat "$logs/own"
exit $((failed != 0))
