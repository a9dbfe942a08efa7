#!/usr/bin/env bash
# Chromium for the tests of the dashboard's pages. Where this is root on Debian it is installed; elsewhere the way to it is
# shown, and the tests are skipped, or with CI=true nothing runs.
set -euo pipefail

# The names of tests/services/browser/conftest.py.
runs() {
    chromium --version >/dev/null 2>&1 || google-chrome --version >/dev/null 2>&1
}

if runs; then
    exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } >&2 || true
    if runs; then
        exit 0
    fi
fi
cat >&2 <<END
The tests of the dashboard's pages need a browser, Chromium or Chrome, which is not here.
Install it with one of
    apt-get install chromium
    dnf install chromium
or from https://www.google.com/chrome, so that \`chromium --version\` or \`google-chrome --version\` answers.
END
if [ "${CI:-}" = true ]; then
    exit 1
fi
echo "The tests of the dashboard's pages are skipped." >&2
