#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a torch that was built for CUDA load where CUDA's libraries are not.

    scripts/without_cuda.py TORCH_FOLDER

PyPI's torch for Linux needs some gigabytes of libraries of which Gloo calls nothing, but the loader
wants every one of them and each function. This writes libraries of their names into
TORCH_FOLDER/lib, whose functions do nothing but say that there is no device. Needs readelf, nm, cc.
"""

import collections
import glob
import os
import re
import subprocess
import sys

# What CUDA's libraries are called, without the driver's own, which torch opens only where it is.
LIBRARY = re.compile(r"lib(?!cuda\.)(cu|nv|nccl)\w*\.so\.\d+$")
FUNCTION = re.compile(r"(__cuda|cu|nv|nccl)\w+$")
NO_DEVICE = 100  # cudaErrorNoDevice; the other libraries' codes need only differ from success.
# Who asks what such a code means reads the answer: what these functions return, or write, is text.
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
    """The library that each version belongs to: "NVSHMEM" to libnvshmem_host.so.3."""
    home, homes = "", {}
    for line in output_of("readelf", "-VW", library).splitlines():
        if file := re.search(r" File: (\S+)", line):
            home = file[1]
        elif name := re.search(r":\s+Name: (\S+) ", line):
            homes[name[1]] = home
    return homes


def wanted_of(libraries):
    """Of each library, by version, its functions; and those that ask for no version."""
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
    # The loader looks for these in all libraries, so any will do.
    if "libnccl.so.2" in wanted:
        wanted["libnccl.so.2"][""] |= bare
    for name, versions in wanted.items():
        make(folder, name, versions)


main()
