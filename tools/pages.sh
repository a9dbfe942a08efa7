#!/usr/bin/env bash
# The pages of the dashboard, built for its tests, and axe, by which they look for what people with disabilities cannot use.
# Where both are there, and newer than their sources, nothing is done. Without npm the way to it is shown, and the tests are
# skipped, or with CI=true nothing runs.
set -euo pipefail
cd "$(dirname "$0")/.."

built=src/hopyard/web/static/index.html

current() {
    [ -e "$built" ] && [ -e dashboard/node_modules/axe-core/axe.min.js ] &&
        [ -z "$(find dashboard -mindepth 1 -path dashboard/node_modules -prune -o -newer "$built" -print -quit)" ]
}

if current; then
    exit 0
fi
if command -v npm >/dev/null; then
    if (cd dashboard && npm ci --no-audit --no-fund && npm run build) >&2; then
        exit 0
    fi
    why="could not be built: npm says above why"
else
    why="are not built, or are older than dashboard/, and npm is missing"
fi
cat >&2 <<END
The pages of the dashboard $why.
Install Node.js 20 or newer, with npm, from https://nodejs.org, and run \`make dashboard\`.
END
if [ "${CI:-}" = true ]; then
    exit 1
fi
echo "The tests that need them are skipped." >&2
