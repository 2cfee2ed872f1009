#!/usr/bin/env bash
# Runs the suite in two processes side by side: the tests on Spark, which share one session, and all others.
# Both are shown, one after the other; the exit status is not 0 when either failed.
set -u
cd "$(dirname "$0")/.."
python=.venv/bin/python
log=$(mktemp)
trap 'rm -f "$log"' EXIT

"$python" -m pytest -q tests/spark "$@" >"$log" 2>&1 &
spark=$!
"$python" -m pytest -q --ignore tests/spark "$@"
others=$?
echo "tests on Spark:"
wait "$spark"
on_spark=$?
cat "$log"
exit $((others != 0 || on_spark != 0))
