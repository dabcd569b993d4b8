# SPDX-License-Identifier: Apache-2.0
"""Makes a Spack repository whose only package unpacks the tarball: spack repo add DIR; spack install ivyrun."""

import hashlib
import os

import tarball
import trees

RECIPE = os.path.join(trees.REPOSITORY, "scripts/packaging/spack/package.py")


def make(made, out):
    archive, = tarball.make(made, out)
    with open(RECIPE) as file:
        text = file.read()
    with open(archive, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    for word, value in {"TARBALL": os.path.abspath(archive), "VERSION": made.version, "SHA256": digest,
                        "MACHINE": made.machine}.items():
        text = text.replace(f"@{word}@", value)
    repository = os.path.join(out, "spack")
    recipe = os.path.join(repository, "packages/ivyrun/package.py")
    os.makedirs(os.path.dirname(recipe), exist_ok=True)
    with open(os.path.join(repository, "repo.yaml"), "w") as file:
        file.write("repo:\n  namespace: ivyrun\n")
    with open(recipe, "w") as file:
        file.write(text)
    return [archive, recipe]
