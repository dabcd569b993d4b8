#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks the style rules that need no build. Prints one line per finding, "file:line: text".
# scripts/README.md describes the rules.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

code=0
/usr/bin/env python3 scripts/style_rules.py || code=1

/usr/bin/env python3 -B scripts/lanes.py check || code=1

if ctags --version 2>/dev/null | grep -q Universal; then
  /usr/bin/env python3 scripts/house.py --check || code=1
else
  echo "check_style: circles SKIPPED, universal-ctags is not installed (scripts/setup test)" >&2
fi

if command -v clang-format >/dev/null; then
  # One finding per file, because clang-format reports every position.
  unformatted=$(python3 scripts/style_rules.py --list-cxx |
    xargs -r -d "\n" clang-format --dry-run 2>&1 |
    sed -n 's/^\([^: ]*:[0-9]*\):[0-9]*: warning: .*clang-format-violations.*/\1/p' |
    sort -t: -k1,1 -k2,2n | awk -F: '!seen[$1]++' || true)
  if [ -n "$unformatted" ]; then
    while read -r place; do echo "$place: not formatted (clang-format -i)"; done <<<"$unformatted"
    code=1
  fi
else
  echo "check_style: formatting SKIPPED, clang-format is not installed (scripts/setup test)" >&2
fi

# scripts/setup lint installs both.
lint=build/lint/bin
if [ -x $lint/ruff ]; then
  $lint/ruff check --quiet --output-format concise agent comm launcher scripts || code=1
  $lint/python3 -m mypy --config-file comm/python/pyproject.toml --cache-dir build/lint/cache --no-error-summary || code=1
else
  echo "check_style: Python SKIPPED, ruff and mypy are not installed (scripts/setup lint)" >&2
fi
exit $code
