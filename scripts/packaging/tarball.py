# SPDX-License-Identifier: Apache-2.0
"""Makes the tarball: the portable tree in one folder, which runs wherever it is unpacked, and `verify`, which checks that
the copy is complete and suits the machine."""

import hashlib
import os
import shutil

import trees

VERIFY = """#!/bin/sh
# Checks that this copy of ivyrun is complete and runs on this machine. Prints one line.
cd "$(dirname "$0")" || exit 1
bad() { echo "ivyrun: $*" >&2; exit 1; }
[ "$(uname -m)" = @MACHINE@ ] || bad "this copy is for @MACHINE@, but this machine is $(uname -m): download the other tarball"
have=$(getconf GNU_LIBC_VERSION 2> /dev/null) || bad "this system does not use glibc; ivyrun requires glibc @GLIBC@ or later"
have=${have#glibc }
[ "$(printf '%s\\n' @GLIBC@ "$have" | sort -V | head -n 1)" = @GLIBC@ ] ||
  bad "this system has glibc $have; ivyrun requires @GLIBC@ or later"
wrong=$(sha256sum --check --quiet MANIFEST 2>&1 | sed -n 's/: FAILED.*//p' | tr '\\n' ' ')
[ -z "$wrong" ] || bad "this copy is incomplete: missing or damaged: ${wrong% }; unpack the tarball again"
echo "ivyrun @VERSION@ is complete and runs on this machine. Add $PWD/bin to PATH."
"""


def manifest(tree):
    lines = []
    for name in trees.files_below(tree):
        path = os.path.join(tree, name)
        if not os.path.islink(path):
            with open(path, "rb") as file:
                lines.append(f"{hashlib.sha256(file.read()).hexdigest()}  {name}\n")
    return "".join(lines)


def make(made, out):
    if "tarball" in made.made:
        return made.made["tarball"]
    name = f"ivyrun-{made.version}-linux-{made.machine}"
    tree = os.path.join(made.folder("tarball"), name)
    shutil.copytree(made.portable(), tree, symlinks=True)
    lines = manifest(tree)
    with open(os.path.join(tree, "MANIFEST"), "w") as file:
        file.write(lines)
    text = VERIFY
    for word, value in {"MACHINE": made.machine, "VERSION": made.version,
                        "GLIBC": ".".join(map(str, trees.NEWEST_GLIBC))}.items():
        text = text.replace(f"@{word}@", value)
    with open(os.path.join(tree, "verify"), "w") as file:
        file.write(text)
    os.chmod(os.path.join(tree, "verify"), 0o755)
    path = os.path.join(out, name + ".tar.gz")
    trees.run("tar", "--create", "--gzip", f"--file={path}", "--owner=0", "--group=0", "--numeric-owner", "--sort=name",
              f"--directory={os.path.dirname(tree)}", name)
    made.made["tarball"] = [path]
    return [path]
