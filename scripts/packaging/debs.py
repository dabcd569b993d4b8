# SPDX-License-Identifier: Apache-2.0
"""Makes Debian's packages from the files in debian/. ivy-agent uses the distribution's gRPC and OpenSSL. The packages
enable, start and restart no service. Packages of another architecture depend on the same libraries as those of this
machine, whose versions are known here: both come from the same release of Debian."""

import email.utils
import glob
import os
import shutil

import trees

HERE = os.path.dirname(os.path.abspath(__file__))
NEEDED = ("dpkg-buildpackage", "dh")
NAMES = {"x86_64": "amd64", "aarch64": "arm64"}


def changelog(version):
    return (f"ivyrun ({version}) stable; urgency=medium\n\n  * See CHANGELOG.md.\n\n"
            f" -- The ivyrun developers <ivyrun@users.noreply.github.com>  {email.utils.formatdate()}\n")


def add_python(tree):
    """Copies ivycomm, with its entry points for torch, to the directory of Debian's Python."""
    source, place = os.path.join(tree, "usr/lib/ivyrun/python"), os.path.join(tree, "usr/lib/python3/dist-packages")
    os.makedirs(os.path.dirname(place))
    shutil.copytree(source, place)


def libraries_of(tree):
    """Returns {name: needed libraries} of the programs and libraries of a tree."""
    return {name: trees.needed_libraries(os.path.join(tree, name)) for name in trees.files_below(tree)
            if trees.is_elf(os.path.join(tree, name)) and not name.endswith(".run")}


def add_dependencies(native, installed, debian):
    """Adds the dependencies of the native packages to debian/, where rules reads them."""
    here = native.made["deb"]
    ours, theirs = libraries_of(os.path.join(here, "installed")), libraries_of(installed)
    if ours != theirs:
        differ = sorted(name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name))
        raise trees.Refusal(f"{', '.join(differ)}: other libraries than on {native.machine}, so the dependencies are unknown")
    for path in glob.glob(os.path.join(here, "*.substvars")):
        shutil.copy(path, os.path.join(debian, os.path.basename(path) + ".native"))


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
    tree = os.path.dirname(made.installed("/usr"))
    add_python(tree)
    installed = shutil.move(tree, os.path.join(source, "debian/installed"))
    command = ["dpkg-buildpackage", "--no-sign", "--no-check-builddeps", "--no-pre-clean"]
    if made.native:
        add_dependencies(made.native, installed, os.path.join(source, "debian"))
        # The packages for every architecture are already made.
        command += ["--build=any", f"--host-arch={NAMES[made.machine]}"]
    else:
        command += ["--build=binary"]
    trees.run(*command, cwd=source)
    made.made["deb"] = os.path.join(source, "debian")
    packages = []
    for path in sorted(glob.glob(os.path.join(os.path.dirname(source), "*.deb"))):
        packages.append(shutil.move(path, os.path.join(out, os.path.basename(path))))
    return packages
