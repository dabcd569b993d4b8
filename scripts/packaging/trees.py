# SPDX-License-Identifier: Apache-2.0
"""Makes the trees of files for the packages from `cmake --install`, stripped: one for the distribution that builds it, and
one, with the agent of portable.cmake, for every system."""

import glob
import hashlib
import io
import os
import re
import shutil
import stat
import subprocess
import tarfile
import tempfile

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# The oldest glibc that packages for every system support; check_portable() checks it.
NEWEST_GLIBC = (2, 34)
# The C library: the only libraries that a portable program may need.
SYSTEM_LIBRARIES = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"}
# Libraries that portable.cmake also links for an older glibc, because they are loaded into users' processes.
OLD_GLIBC = (2, 28)
OLD_LIBRARIES = ("lib/libivycomm.so.1", "lib/libivycomm_jax.so", "lib/ivyrun/libivy_nccl_profiler.so")


class Refusal(Exception):
    """A package cannot be made. The text is a sentence for the user."""


def run(*command, cwd=None):
    """Runs a command and returns its output. Raises Refusal if it fails."""
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    except OSError as error:
        raise Refusal(f"{command[0]}: {error.strerror}; is it installed?") from error
    if done.returncode != 0:
        raise Refusal(f"{' '.join(command)} failed:\n{(done.stderr or done.stdout).rstrip()}")
    return done.stdout


def is_elf(path):
    if os.path.islink(path) or not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def files_below(tree):
    """Returns the paths of all files and links, relative to the tree, sorted."""
    found = []
    for folder, folders, names in os.walk(tree):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        found += [os.path.relpath(os.path.join(folder, name), tree) for name in names + links]
    return sorted(found)


def newest_glibc(path):
    """Returns the newest version of glibc whose symbols the file needs, such as (2, 34); (0,) if it needs none."""
    versions = re.findall(r"GLIBC_(\d+)\.(\d+)", run("readelf", "--version-info", "--wide", path))
    return max(((int(major), int(minor)) for major, minor in versions), default=(0,))


def check_portable(tree):
    """Raises Refusal if the tree has a file that a system with glibc NEWEST_GLIBC cannot load."""
    for name in files_below(tree):
        path = os.path.join(tree, name)
        if not is_elf(path):
            continue
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "--dynamic", "--wide", path)))
        beside = set(os.listdir(os.path.dirname(path)))  # The run path is $ORIGIN.
        foreign = {library for library in needed - SYSTEM_LIBRARIES - beside if not library.startswith("ld-linux")}
        if foreign:
            raise Refusal(f"{name} needs {', '.join(sorted(foreign))}, which not every system has")
        if newest_glibc(path) > NEWEST_GLIBC:
            raise Refusal(f"{name} needs glibc {'.'.join(map(str, newest_glibc(path)))}, but packages must run with "
                          f"{'.'.join(map(str, NEWEST_GLIBC))}")


def strip(tree):
    for name in files_below(tree):
        path = os.path.join(tree, name)
        # A bundle is a program followed by an archive, which strip would remove.
        if is_elf(path) and not name.endswith(".run"):
            os.chmod(path, os.stat(path).st_mode | stat.S_IWUSR)
            run("strip", "--strip-unneeded", path)


def replace_members(archive, replaced):
    """Returns the tar archive with the contents of some members replaced: {name: content}."""
    made = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(archive)) as old, \
            tarfile.open(fileobj=made, mode="w", format=tarfile.USTAR_FORMAT) as new:
        for member in old:
            content = replaced.get(member.name, old.extractfile(member).read())
            member.size = len(content)
            new.addfile(member, io.BytesIO(content))
    return made.getvalue()


def remake_bundle(tree, level, replaced):
    """Compresses the bundle that is sent to hosts again, with zstd's `level`: a build uses a fast one, packages 19."""
    path, = glob.glob(os.path.join(tree, "lib/ivyrun/bundle-*.run"))
    with open(path + ".sha256") as file:
        begin = int(file.read().split()[2])
    with open(path, "rb") as file:
        program, archive = file.read(begin), file.read()
    archive = subprocess.run(["zstd", "-q", "-d"], input=archive, stdout=subprocess.PIPE, check=True).stdout
    archive = replace_members(archive, replaced)
    command = ["zstd", "-q", f"-{level}", "-T0"]
    archive = subprocess.run(command, input=archive, stdout=subprocess.PIPE, check=True).stdout
    whole = program + archive
    with open(path, "wb") as file:
        file.write(whole)
    digests = [hashlib.sha256(content).hexdigest() for content in (whole, archive)]
    with open(path + ".sha256", "w") as file:
        file.write(f"{' '.join(digests)} {begin} {len(whole)}\n")


class Trees:
    """Makes each tree once, in a temporary folder."""

    def __init__(self, build, out, quick=False):
        if not os.path.exists(os.path.join(build, "cmake_install.cmake")):
            raise Refusal(f"{build} is not a build: omit --no-build")
        self.build, self.quick = build, quick
        self.work = tempfile.mkdtemp(prefix=".making.", dir=out)
        with open(os.path.join(build, "CMakeCache.txt")) as cache:
            self.version = re.search(r"^CMAKE_PROJECT_VERSION:\w+=(.*)$", cache.read(), re.M)[1]
        self.machine = os.uname().machine
        self.made = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.work, ignore_errors=True)

    def folder(self, name):
        path = os.path.join(self.work, name)
        os.makedirs(path)
        return path

    def installed(self, prefix):
        """Installs everything below a prefix, strips it, and returns the path of the tree."""
        tree = self.folder("installed" + prefix.replace("/", "-"))
        environment = {**os.environ, "DESTDIR": tree}
        done = subprocess.run(["cmake", "--install", self.build, "--prefix", prefix], env=environment,
                              capture_output=True, text=True)
        if done.returncode != 0:
            raise Refusal(f"cmake --install failed:\n{done.stderr.rstrip()}")
        strip(tree)
        return os.path.join(tree, prefix.lstrip("/"))

    def distribution(self, prefix):
        """Returns the tree for the distribution on which it is built."""
        tree = self.installed(prefix)
        if not self.quick:
            remake_bundle(tree, 19, {})
        return tree

    def take_old_libraries(self, tree):
        """Replaces libraries of the build by those for an older glibc, if there are any. Returns {name in the bundle:
        content}."""
        taken = {}
        for name in OLD_LIBRARIES:
            old = os.path.join(self.build, "portable", os.path.basename(name))
            if not os.path.exists(old):
                continue
            if newest_glibc(old) > OLD_GLIBC:
                raise Refusal(f"{old} needs glibc {'.'.join(map(str, newest_glibc(old)))}, but it must run with "
                              f"{'.'.join(map(str, OLD_GLIBC))}")
            shutil.copyfile(old, os.path.realpath(os.path.join(tree, name)))
            with open(old, "rb") as file:
                taken[os.path.basename(name)] = file.read()
        return taken

    def portable(self):
        """Returns the tree for every system, whose ivy-agent contains gRPC."""
        if "portable" in self.made:
            return self.made["portable"]
        agent = os.path.join(self.build, "portable/ivy_agent_portable")
        if not os.path.exists(agent):
            raise Refusal(f"{agent} does not exist: build it with cmake --build build --target ivy_portable, which requires "
                          "libarchive.a and libzstd.a (Debian: libarchive-dev libzstd-dev)")
        tree = self.installed("/portable")
        shutil.copy(agent, os.path.join(tree, "bin/ivy-agent"))
        run("strip", os.path.join(tree, "bin/ivy-agent"))
        old = self.take_old_libraries(tree)
        if old or not self.quick:
            remake_bundle(tree, 9 if self.quick else 19, old)
        check_portable(tree)
        self.made["portable"] = tree
        return tree
