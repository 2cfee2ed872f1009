#!/bin/sh
# Checks the installed dependencies for known vulnerabilities. A machine that cannot reach the index, or has no
# pip-audit, is told so and is not held up: exit status 0. A vulnerability is exit status 1.
set -u
cd "$(dirname "$0")/.." || exit 1
PYTHON=.venv/bin/python

if ! "$PYTHON" -c "import pip_audit" 2>/dev/null; then
    echo "audit: pip-audit is not installed (pip install pip-audit): nothing was checked"
    exit 0
fi

OUTPUT=$(timeout "${AUDIT_SECONDS:-60}" "$PYTHON" -m pip_audit --skip-editable --progress-spinner off --timeout 10 2>&1)
STATUS=$?
if [ "$STATUS" -eq 0 ]; then
    echo "audit: no known vulnerabilities"
    exit 0
fi
# Findings come as a table; everything else is a reason why there are none.
if printf '%s\n' "$OUTPUT" | grep -q "^Found [0-9]* known vulnerabilit"; then
    printf '%s\n' "$OUTPUT"
    exit 1
fi
echo "audit: the index of vulnerabilities cannot be reached: nothing was checked"
exit 0
