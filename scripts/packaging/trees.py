# SPDX-License-Identifier: Apache-2.0
"""Makes the trees of files for the packages from `cmake --install`, stripped: for each architecture one for the
distribution that builds it, and one, with the agent of portable.cmake, for every system. Every tree has the bundles of all
architectures, so that every launcher can start workers on each of them."""

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


# The largest page of kernels for aarch64.
LARGEST_PAGE = 65536


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


def read(path):
    with open(path, "rb") as file:
        return file.read()


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


def needed_libraries(path):
    names = re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "--dynamic", "--wide", path))
    return {name for name in names if not name.startswith("ld-linux")}


def check_pages(name, path):
    """Raises Refusal if a kernel with the largest pages of the file's architecture cannot load the file."""
    text = run("readelf", "--program-headers", "--file-header", "--wide", path)
    alignments = [int(line.split()[-1], 16) for line in text.splitlines() if line.split()[:1] == ["LOAD"]]
    if "AArch64" in text and min(alignments, default=LARGEST_PAGE) < LARGEST_PAGE:
        raise Refusal(f"{name} is aligned to pages of {min(alignments)} bytes, but kernels for aarch64 may have pages of "
                      f"{LARGEST_PAGE}")


def check_portable(tree):
    """Raises Refusal if the tree has a file that a system with glibc NEWEST_GLIBC cannot load."""
    for name in files_below(tree):
        path = os.path.join(tree, name)
        if not is_elf(path):
            continue
        check_pages(name, path)
        beside = set(os.listdir(os.path.dirname(path)))  # The run path is $ORIGIN.
        foreign = needed_libraries(path) - SYSTEM_LIBRARIES - beside
        if foreign:
            raise Refusal(f"{name} needs {', '.join(sorted(foreign))}, which not every system has")
        if newest_glibc(path) > NEWEST_GLIBC:
            raise Refusal(f"{name} needs glibc {'.'.join(map(str, newest_glibc(path)))}, but packages must run with "
                          f"{'.'.join(map(str, NEWEST_GLIBC))}")


def strip(tree, program):
    for name in files_below(tree):
        path = os.path.join(tree, name)
        # A bundle is a program followed by an archive, which strip would remove.
        if is_elf(path) and not name.endswith(".run"):
            os.chmod(path, os.stat(path).st_mode | stat.S_IWUSR)
            run(program, "--strip-unneeded", path)


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


def remake_bundle(source, path, level, replaced):
    """Writes the bundle `source` to `path` with some members replaced and compressed again, with zstd's `level`: a build uses
    a fast one, packages 19."""
    description = read(source + ".sha256").decode().split()
    begin, build = int(description[2]), description[4]
    content = read(source)
    archive = subprocess.run(["zstd", "-q", "-d"], input=content[begin:], stdout=subprocess.PIPE, check=True).stdout
    archive = replace_members(archive, replaced)
    command = ["zstd", "-q", f"-{level}", "-T0"]
    archive = subprocess.run(command, input=archive, stdout=subprocess.PIPE, check=True).stdout
    whole = content[:begin] + archive
    with open(path, "wb") as file:
        file.write(whole)
    digests = [hashlib.sha256(content).hexdigest() for content in (whole, archive)]
    with open(path + ".sha256", "w") as file:
        file.write(f"{' '.join(digests)} {begin} {len(whole)} {build}\n")


class Trees:
    """Makes each tree of one architecture once, in a temporary folder.

    native: the trees of this machine's architecture, or None for those themselves. Their programs run here, so they also make
    the manual pages for the others."""

    def __init__(self, build, machine, out, quick=False, native=None):
        if not os.path.exists(os.path.join(build, "cmake_install.cmake")):
            raise Refusal(f"{build} is not a build: omit --no-build")
        self.build, self.machine, self.quick, self.native = build, machine, quick, native
        with open(os.path.join(build, "CMakeCache.txt")) as cache:
            values = dict(re.findall(r"^(CMAKE_PROJECT_VERSION|CMAKE_STRIP):\w+=(.*)$", cache.read(), re.M))
        self.version, self.strip = values["CMAKE_PROJECT_VERSION"], values["CMAKE_STRIP"]
        if native and native.version != self.version:
            raise Refusal(f"{build} is version {self.version}, but {native.build} is {native.version}: omit --no-build")
        self.work = tempfile.mkdtemp(prefix=".making.", dir=out)
        self.bundles = []  # Of all architectures.
        self.made = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.work, ignore_errors=True)

    def folder(self, name):
        path = os.path.join(self.work, name)
        os.makedirs(path)
        return path

    def bundle(self):
        """Makes this architecture's bundle and returns its path; its description is next to it. It has the libraries for an
        older glibc, if there are any."""
        name = f"bundle-{self.machine}.run"
        source, path = os.path.join(self.build, "lib/ivyrun", name), os.path.join(self.folder("bundle"), name)
        old = {os.path.basename(file): read(file) for file in self.old_libraries().values()}
        if old or not self.quick:
            remake_bundle(source, path, 9 if self.quick else 19, old)
        else:
            shutil.copy(source, path)
            shutil.copy(source + ".sha256", path + ".sha256")
        return path

    def old_libraries(self):
        """Returns {name in a tree: file} of the libraries that were also linked for an older glibc."""
        found = {}
        for name in OLD_LIBRARIES:
            old = os.path.join(self.build, "portable", os.path.basename(name))
            if not os.path.exists(old):
                continue
            if newest_glibc(old) > OLD_GLIBC:
                raise Refusal(f"{old} needs glibc {'.'.join(map(str, newest_glibc(old)))}, but it must run with "
                              f"{'.'.join(map(str, OLD_GLIBC))}")
            found[name] = old
        return found

    def installed(self, prefix):
        """Installs everything below a prefix, strips it, and returns the path of the tree."""
        root = self.folder("installed" + prefix.replace("/", "-"))
        environment = {**os.environ, "DESTDIR": root}
        done = subprocess.run(["cmake", "--install", self.build, "--prefix", prefix], env=environment,
                              capture_output=True, text=True)
        if done.returncode != 0:
            raise Refusal(f"cmake --install failed:\n{done.stderr.rstrip()}")
        strip(root, self.strip)
        tree = os.path.join(root, prefix.lstrip("/"))
        for path in glob.glob(os.path.join(tree, "lib/ivyrun/bundle-*")):
            os.unlink(path)
        for path in self.bundles:
            for file in (path, path + ".sha256"):
                shutil.copy(file, os.path.join(tree, "lib/ivyrun"))
        self.share_pages(tree)
        return tree

    def share_pages(self, tree):
        """Keeps the pages that programs of this machine have made, or adds those of the native trees."""
        share = os.path.join(tree, "share")
        if not self.native:
            if "share" not in self.made:
                self.made["share"] = shutil.copytree(share, os.path.join(self.work, "share"), symlinks=True)
            return
        kept = self.native.made["share"]
        for name in files_below(kept):
            path = os.path.join(share, name)
            if not os.path.lexists(path):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                shutil.copy(os.path.join(kept, name), path, follow_symlinks=False)

    def portable(self):
        """Returns the tree for every system, whose ivy-agent contains gRPC."""
        if "portable" in self.made:
            return self.made["portable"]
        agent = os.path.join(self.build, "portable/ivy_agent_portable")
        if not os.path.exists(agent):
            raise Refusal(f"{agent} does not exist: build it with cmake --build {self.build} --target ivy_portable, which "
                          "requires libarchive.a and libzstd.a (Debian: libarchive-dev libzstd-dev)")
        tree = self.installed("/portable")
        shutil.copy(agent, os.path.join(tree, "bin/ivy-agent"))
        run(self.strip, os.path.join(tree, "bin/ivy-agent"))
        for name, file in self.old_libraries().items():
            shutil.copyfile(file, os.path.realpath(os.path.join(tree, name)))
        check_portable(tree)
        self.made["portable"] = tree
        return tree
