# SPDX-License-Identifier: Apache-2.0
"""Makes the wheel `ivyrun`. Its portable tree is installed to the environment's bin/ and lib/, which have the same layout
as any installation; ivycomm is also installed to site-packages, for programs that ivyrun does not start."""

import base64
import hashlib
import os
import re
import subprocess
import sys
import zipfile

import trees

PYTHON = os.path.join(trees.REPOSITORY, "comm/python")
# Examples and the systemd unit, which pip's users look for elsewhere (the pages of docs/, which help and messages name,
# stay); files for CMake and pkg-config, which need links, as a wheel cannot have; the library under its full version,
# because add_tree() adds it as libivycomm.so.1.
LEFT_OUT = re.compile(r"^(share/doc/ivyrun/(?!docs/)|lib/systemd/|lib/cmake/|lib/pkgconfig/|lib/libivycomm\.so\.\d+\.)")
METADATA = """Metadata-Version: 2.1
Name: ivyrun
Version: {version}
Summary: Starts distributed jobs with one command, and reports which rank failed first and why
License: Apache-2.0
Requires-Python: >=3.9
Classifier: Operating System :: POSIX :: Linux
Classifier: Intended Audience :: Science/Research
Classifier: Topic :: System :: Distributed Computing
Description-Content-Type: text/markdown

{description}"""


def entry_points():
    with open(os.path.join(PYTHON, "ivycomm_entry_points.dist-info/entry_points.txt")) as file:
        return file.read()


class Writer:
    """Writes a wheel: its files, then their RECORD. Equal files give an identical wheel."""

    def __init__(self, path, info):
        self.zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9)
        self.info = info
        self.record = []

    def add(self, name, content, executable=False):
        entry = zipfile.ZipInfo(name, (1980, 1, 2, 0, 0, 0))
        entry.external_attr = (0o100755 if executable else 0o100644) << 16
        # The bundle is compressed already.
        entry.compress_type = zipfile.ZIP_STORED if name.endswith(".run") else zipfile.ZIP_DEFLATED
        self.zip.writestr(entry, content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(content)}\n")

    def finish(self):
        self.record.append(f"{self.info}/RECORD,,\n")
        self.zip.writestr(zipfile.ZipInfo(f"{self.info}/RECORD", (1980, 1, 2, 0, 0, 0)), "".join(self.record))
        self.zip.close()


def add_tree(writer, tree, data):
    for name in trees.files_below(tree):
        path = os.path.join(tree, name)
        if LEFT_OUT.match(name):
            continue
        if os.path.islink(path):
            if name.startswith("bin/"):  # A wheel cannot have links: add a copy of the program.
                writer.add(f"{data}/scripts/{name[4:]}", trees.read(os.path.realpath(path)), executable=True)
            continue
        is_program = name.startswith("bin/")
        where = f"{data}/scripts/{name[4:]}" if is_program else f"{data}/data/{name}"
        writer.add(where, trees.read(path), executable=is_program)
    writer.add(f"{data}/data/lib/libivycomm.so.1", trees.read(os.path.join(tree, "lib/libivycomm.so.1")))


def add_package(writer):
    for name in trees.files_below(PYTHON):
        belongs = name.startswith("ivycomm/") or name == "ivycomm_torch_entry.py"
        if belongs and "__pycache__" not in name:
            writer.add(name, trees.read(os.path.join(PYTHON, name)))
    made = subprocess.run([sys.executable, "-B", "-c", "import make_stub; print(make_stub.stub(), end='')"], cwd=PYTHON,
                          capture_output=True, check=True)
    writer.add("ivycomm/collectives.pyi", made.stdout)


def make(made, out):
    tree = made.portable()
    tag = f"py3-none-manylinux_{'_'.join(map(str, trees.NEWEST_GLIBC))}_{made.machine}"
    path = os.path.join(out, f"ivyrun-{made.version}-{tag}.whl")
    info, data = f"ivyrun-{made.version}.dist-info", f"ivyrun-{made.version}.data"
    writer = Writer(path, info)
    add_package(writer)
    add_tree(writer, tree, data)
    description = trees.read(os.path.join(trees.REPOSITORY, "README.md")).decode()
    writer.add(f"{info}/METADATA", METADATA.format(version=made.version, description=description).encode())
    # Declared as pure, so that pip installs ivycomm below lib/, where libivycomm is, and not below lib64/.
    writer.add(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: scripts/package\nRoot-Is-Purelib: true\nTag: {tag}\n"
               .encode())
    writer.add(f"{info}/entry_points.txt", entry_points().encode())
    writer.add(f"{info}/licenses/LICENSE", trees.read(os.path.join(trees.REPOSITORY, "LICENSE")))
    writer.finish()
    return [path]
