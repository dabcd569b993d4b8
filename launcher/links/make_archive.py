# SPDX-License-Identifier: Apache-2.0
"""make_archive.py OUT FILE...: packs the Python package, in the working directory, into one archive for imports.

For each module that `import ivycomm` needs, the archive also has the bytecode of this Python version, so that this
version need not compile them at every start (60 ms); other versions compile them. The archive does not depend on the
time and place of its creation. It is not compressed, because the bundle is.
"""

import importlib.util
import os
import py_compile
import sys
import tempfile
import zipfile


def wanted():
    """Returns the paths of the modules that `import ivycomm` imports."""
    sys.dont_write_bytecode = True
    sys.path.insert(0, os.getcwd())
    import ivycomm

    names = [name for name in sys.modules if name.partition(".")[0] == ivycomm.__name__]
    return {os.path.relpath(importlib.util.find_spec(name).origin) for name in names}


def compiled(path):
    with tempfile.TemporaryDirectory() as folder:
        made = py_compile.compile(path, os.path.join(folder, "module.pyc"), f"ivycomm.zip/{path}", doraise=True,
                                  invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
        with open(made, "rb") as file:
            return file.read()


def add(archive, name, data):
    entry = zipfile.ZipInfo(name, (1980, 1, 2, 0, 0, 0))
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, data)


def main():
    out, *paths = sys.argv[1:]
    at_once = wanted()
    with zipfile.ZipFile(out + ".new", "w") as archive:
        for path in sorted(paths):
            with open(path, "rb") as file:
                add(archive, path, file.read())
            if path in at_once:
                add(archive, path + "c", compiled(path))
    os.replace(out + ".new", out)


main()
