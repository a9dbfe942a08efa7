#!/usr/bin/env bash
# Java 17 or newer for the tests of Spark. Where this is root on Debian or Ubuntu it is installed; elsewhere the way to it
# is shown, and the tests are skipped, or with CI=true nothing runs.
set -euo pipefail

new_enough() {
    local version
    version=$(java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1) || true
    [ "${version:-0}" -ge 17 ]
}

if new_enough; then
    exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    { apt-get update -qq && apt-get install -y -qq openjdk-17-jre-headless; } >&2 || true
    if new_enough; then
        exit 0
    fi
fi
here=missing
if command -v java >/dev/null; then
    here=$(java -version 2>&1 | head -n 1) || true
fi
cat >&2 <<END
The tests of Spark need Java 17 or newer; \`java\` here is $here.
Install it with one of
    apt-get install openjdk-17-jre-headless
    dnf install java-17-openjdk-headless
    brew install openjdk@17
or from https://adoptium.net, so that \`java -version\` says 17 or more.
END
if [ "${CI:-}" = true ]; then
    exit 1
fi
echo "The tests of Spark are skipped." >&2
