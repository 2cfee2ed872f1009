#!/usr/bin/env bash
# Runs the suite in eight processes side by side: the tests that start a Spark of their own, two groups that each share one
# Spark session, two groups that mostly wait for servers, the unit tests, pages with all that runs in processes of its own,
# and all others. All are shown, one after the other; the exit status is not 0 when one failed.
#
# A test that hangs is ended and named by its own timeout. A part that hangs all the same, between tests or in foreign
# code, is aborted after PART_S seconds, as all are when this script is told to end: then Python prints the stack of every
# thread, with the test's function in it.
set -u
cd "$(dirname "$0")/.."
python=.venv/bin/python
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
failed=0
declare -A parts

start() { # NAME ARGUMENTS...
    timeout --signal=ABRT --kill-after=30 "${PART_S:-2400}" "$python" -m pytest -q "${@:2}" &
    parts[$1]=$!
}

show() { # NAME TITLE
    echo "$2:"
    wait "${parts[$1]}" 2>/dev/null || failed=1
    cat "$logs/$1"
}

abort() {
    failed=1
    kill -ABRT "${parts[@]}" 2>/dev/null
    wait
}
trap abort TERM INT

start own --timeout 600 tests/spark -m own_process "$@" >"$logs/own" 2>&1
start pipelines --timeout 600 tests/spark/pipelines -m "not own_process" "$@" >"$logs/pipelines" 2>&1
start spark --timeout 600 tests/spark --ignore=tests/spark/pipelines -m "not own_process" "$@" >"$logs/spark" 2>&1
clients=(tests/conformance/{client,command,core,key_value})
start clients "${clients[@]}" "$@" >"$logs/clients" 2>&1
start servers tests/conformance tests/cluster "${clients[@]/#/--ignore=}" "$@" >"$logs/servers" 2>&1
start units tests/unit "$@" >"$logs/units" 2>&1
pages=(tests/{browser,docs,integrations,platforms})
start pages "${pages[@]}" "$@" >"$logs/pages" 2>&1
elsewhere=(tests/{unit,spark,conformance,cluster} "${pages[@]}")
start others "${elsewhere[@]/#/--ignore=}" "$@"
wait "${parts[others]}" || failed=1
show units "unit tests"
show pages "tests of pages, frameworks and systems"
show clients "tests of client, command, core and key-value buckets against both servers"
show servers "tests of streams and consumers against both servers, and of a cluster"
show spark "tests of source and sink on a Spark session"
show pipelines "tests of pipelines on a Spark session"
show own "tests on Spark in processes of its own"
exit $failed
