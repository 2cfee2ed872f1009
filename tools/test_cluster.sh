#!/bin/sh
# Run everything that needs a nats-server cluster, in two lanes: kills of leaders mostly wait for elections.
# CLUSTER_KILLS is the number of kills.
set -u
cd "$(dirname "$0")/.."
python=.venv/bin/python
log=$(mktemp)
trap 'rm -f "$log"' EXIT

$python -m pytest -q --timeout 900 -p no:cacheprovider tests/cluster/full_failover.py >"$log" 2>&1 &
lane=$!
# File by file: pytest leaves files out whose folder is named too, unless their names begin with test_.
others=$(ls tests/cluster/full_*.py tests/cluster/test_*.py | grep -v full_failover)
# shellcheck disable=SC2086
$python -m pytest -q --timeout 900 $others
here=$?
CONFORMANCE_CLUSTER=1 $python -m pytest -q -k cluster tests/conformance
conformance=$?
wait "$lane"
there=$?
cat "$log"
[ "$here$conformance$there" = 000 ]
