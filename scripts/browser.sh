#!/usr/bin/env bash
# What the browser tests need besides Python packages: chromium, a font for Chinese, Japanese and
# Korean, and pdftotext. Installs them on Debian where this user may; says so where it cannot.
set -euo pipefail
if command -v chromium >/dev/null && command -v pdftotext >/dev/null; then
  exit 0
fi
if ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
  echo "browser tests: chromium or pdftotext is missing, and this user cannot install them" >&2
  exit 1
fi
log=$(mktemp)
{
  apt-get update
  DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
    chromium fonts-noto-cjk poppler-utils
} >"$log" 2>&1 || {
  tail -n 5 "$log" >&2
  echo "browser tests: chromium could not be installed; the whole log is in $log" >&2
  exit 1
}
