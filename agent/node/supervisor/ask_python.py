# SPDX-License-Identifier: Apache-2.0
"""Checks for a Python module without importing it, because importing torch takes seconds.

python3 -c TEXT MODULE prints Python's version, then "found VERSION", or exits with the reason why the module is missing.
If MODULE is empty, only Python's version is printed.
"""
import importlib.util
import sys

print(".".join(map(str, sys.version_info[:3])))
name = sys.argv[1]
if not name:
    sys.exit(0)
try:
    found = importlib.util.find_spec(name)
except Exception as error:
    sys.exit(str(error))
if found is None:
    sys.exit("no module named " + name)
version = "?"
try:
    from importlib.metadata import version as version_of
    version = version_of(name.split(".")[0])
except Exception:
    pass
print("found " + version)
