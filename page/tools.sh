#!/bin/sh
# Installs what the page's tests need: npm's packages, and Chromium from Debian's packages where we may.
cd "$(dirname "$0")" || exit 0
if command -v npm >/dev/null && [ ! -d node_modules/pyodide ]; then
  npm ci --silent || echo "page: npm's packages could not be installed"
fi
if [ -z "$CHROMIUM" ] && ! command -v chromium >/dev/null && ! command -v chromium-browser >/dev/null; then
  if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium fonts-noto-cjk; } \
      >/dev/null 2>&1 || echo "page: Chromium could not be installed"
  fi
fi
exit 0
