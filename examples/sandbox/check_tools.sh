#!/usr/bin/env bash
# Says in one go what this machine lacks for `make setup`, and how to get it.
set -u
python=${1:-python3}
missing=()

"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null ||
  missing+=("Python 3.11 to 3.13 (found: $("$python" --version 2>&1 | head -n 1)); Debian: apt-get install python3; another one: make setup PYTHON=python3.12")
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
  missing+=("Python's venv module; Debian: apt-get install python3-venv")

java_bin=${JAVA_HOME:+$JAVA_HOME/bin/}java
java_version=$("$java_bin" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1)
[ "${java_version:-0}" -ge 17 ] ||
  missing+=("Java 17 or newer, for Spark (found: ${java_version:-none}); Debian: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17; then set JAVA_HOME or PATH")
command -v git >/dev/null || missing+=("git; Debian: apt-get install git")
command -v make >/dev/null || missing+=("make; Debian: apt-get install make")

[ ${#missing[@]} -eq 0 ] && exit 0
echo "Lockstep needs, and does not find here:" >&2
printf '  - %s\n' "${missing[@]}" >&2
exit 1
