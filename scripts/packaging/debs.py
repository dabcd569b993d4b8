# SPDX-License-Identifier: Apache-2.0
"""Makes Debian's packages from the files in debian/. ivy-agent uses the distribution's gRPC and OpenSSL. The packages
enable, start and restart no service."""

import email.utils
import glob
import os
import shutil

import trees

HERE = os.path.dirname(os.path.abspath(__file__))
NEEDED = ("dpkg-buildpackage", "dh")


def changelog(version):
    return (f"ivyrun ({version}) stable; urgency=medium\n\n  * See CHANGELOG.md.\n\n"
            f" -- The ivyrun developers <ivyrun@users.noreply.github.com>  {email.utils.formatdate()}\n")


def add_python(tree):
    """Copies ivycomm, with its entry points for torch, to the directory of Debian's Python."""
    source, place = os.path.join(tree, "usr/lib/ivyrun/python"), os.path.join(tree, "usr/lib/python3/dist-packages")
    os.makedirs(os.path.dirname(place))
    shutil.copytree(source, place)


def make(made, out):
    for command in NEEDED:
        if shutil.which(command) is None:
            raise trees.Refusal(f"{command} is not installed; Debian: scripts/setup package")
    source = os.path.join(made.folder("deb"), "source")
    shutil.copytree(os.path.join(HERE, "debian"), os.path.join(source, "debian"))
    with open(os.path.join(source, "debian/changelog"), "w") as file:
        file.write(changelog(made.version))
    os.mkdir(os.path.join(source, "debian/source"))
    with open(os.path.join(source, "debian/source/format"), "w") as file:
        file.write("3.0 (native)\n")
    tree = os.path.dirname(made.distribution("/usr"))
    add_python(tree)
    shutil.move(tree, os.path.join(source, "debian/installed"))
    trees.run("dpkg-buildpackage", "--build=binary", "--no-sign", "--no-check-builddeps", "--no-pre-clean", cwd=source)
    packages = []
    for path in sorted(glob.glob(os.path.join(os.path.dirname(source), "*.deb"))):
        packages.append(shutil.move(path, os.path.join(out, os.path.basename(path))))
    return packages
