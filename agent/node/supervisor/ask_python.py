# SPDX-License-Identifier: Apache-2.0
"""Prints the version of Python, then "found VERSION" of a module or why it is missing: python3 -c TEXT MODULE; MODULE may be empty.
Finds the module as an import would, without running it: torch takes seconds to import."""
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
    sys.exit("there is no module " + name)
version = "?"
try:
    from importlib.metadata import version as version_of
    version = version_of(name.split(".")[0])
except Exception:
    pass
print("found " + version)
