#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lets a torch that was built for CUDA load on a machine without CUDA's libraries.

    scripts/without_cuda.py TORCH_FOLDER

PyPI's torch for Linux is linked with several gigabytes of CUDA libraries. Gloo does not call them, but the dynamic loader
requires each library and each function. This script writes stub libraries of the same names to TORCH_FOLDER/lib, whose
functions only report that there is no device. Needs readelf, nm and cc.
"""

import collections
import glob
import os
import re
import subprocess
import sys

# The names of CUDA's libraries, except the driver's (libcuda), which torch opens only if it is installed.
LIBRARY = re.compile(r"lib(?!cuda\.)(cu|nv|nccl)\w*\.so\.\d+$")
FUNCTION = re.compile(r"(__cuda|cu|nv|nccl)\w+$")
NO_DEVICE = 100  # cudaErrorNoDevice; the other libraries' codes need only differ from success.
# Functions that translate an error code return or write this text, because their callers read the result.
TEXT = '"CUDA is not installed"'
STUBS = (
    (re.compile(r"(cu|cupti)Get(Error|Result)(String|Name)$"),
     "int {0}(int code, const char** text) {{ *text = {1}; return 0; }}\n"),
    (re.compile(r"\w+Get(Error|Status)(String|Name)$|ncclGetLastError$"),
     "const char* {0}(void) {{ return {1}; }}\n"),
    (re.compile(r"cudnnGetLastErrorString$"),
     "void {0}(char* text, unsigned long size) {{ if (size) *text = 0; }}\n"),
    (re.compile(""), "int {0}(void) {{ return {2}; }}\n"))


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def homes_of(library):
    """Returns {symbol version: library that defines it}, such as {"NVSHMEM": "libnvshmem_host.so.3"}."""
    home, homes = "", {}
    for line in output_of("readelf", "-VW", library).splitlines():
        if file := re.search(r" File: (\S+)", line):
            home = file[1]
        elif name := re.search(r":\s+Name: (\S+) ", line):
            homes[name[1]] = home
    return homes


def wanted_of(libraries):
    """Returns {CUDA library: {symbol version: functions}}, and the functions that are required without a version."""
    wanted, bare = collections.defaultdict(lambda: collections.defaultdict(set)), set()
    for library in libraries:
        for name in re.findall(r"\(NEEDED\).*\[(.*)\]", output_of("readelf", "-dW", library)):
            if LIBRARY.match(name):
                wanted[name][""] |= set()
        homes = homes_of(library)
        for line in output_of("nm", "-D", "--undefined-only", library).splitlines():
            function, _, version = line.split()[-1].partition("@")
            if not version and FUNCTION.match(function):
                bare.add(function)
            elif LIBRARY.match(homes.get(version, "")):
                wanted[homes[version]][version].add(function)
    return wanted, bare


def stub_of(function):
    code = next(code for names, code in STUBS if names.match(function))
    return code.format(function, TEXT, NO_DEVICE)


def make(folder, name, versions):
    code, script = "", ""
    for version, functions in versions.items():
        code += "".join(stub_of(function) for function in sorted(functions))
        if version:
            script += f"{version} {{ global: {' '.join(f'{one};' for one in sorted(functions))} }};\n"
    with open(os.path.join(folder, "without_cuda.map"), "w", encoding="ascii") as file:
        file.write(script)
    flags = [f"-Wl,--version-script,{file.name}"] if script else []
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-x", "c", "-", f"-Wl,-soname,{name}", *flags,
                    "-o", os.path.join(folder, name)], input=code, text=True, check=True)
    os.unlink(file.name)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = os.path.join(sys.argv[1], "lib")
    wanted, bare = wanted_of(glob.glob(os.path.join(folder, "*.so")))
    # The loader searches all libraries for functions without a version, so any library can define them.
    if "libnccl.so.2" in wanted:
        wanted["libnccl.so.2"][""] |= bare
    for name, versions in wanted.items():
        make(folder, name, versions)


main()
