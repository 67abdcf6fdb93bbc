#!/bin/sh
# What the page's browser tests still need, in one line; nothing if all is there.
cd "$(dirname "$0")" || exit 1
missing=""
command -v node >/dev/null || missing="$missing node"
[ -n "$CHROMIUM" ] || command -v chromium >/dev/null || command -v chromium-browser >/dev/null || missing="$missing chromium"
[ -d node_modules/pyodide ] || missing="$missing npm-packages"
echo "$missing" | sed 's/^ //'
