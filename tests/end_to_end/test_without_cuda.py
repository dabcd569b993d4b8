# SPDX-License-Identifier: Apache-2.0
"""scripts/without_cuda.py: the functions of its libraries return values of the types that callers expect."""

import ctypes
import os
import subprocess
import sys

from launching import REPOSITORY

SCRIPT = os.path.join(REPOSITORY, "scripts/without_cuda.py")
CALLER = """
int cudaGetDeviceCount(int*);
const char* cudaGetErrorString(int);
const char* ncclGetLastError(void*);
int cuptiGetResultString(int, const char**);
int count(void) { int found; return cudaGetDeviceCount(&found); }
const char* error(void) { return cudaGetErrorString(100); }
const char* last(void) { return ncclGetLastError(0); }
const char* result(void) { const char* text; cuptiGetResultString(1, &text); return text; }
"""


def test_functions_return_values_of_the_right_types(tmp_path):
    folder = tmp_path / "lib"
    folder.mkdir()

    def cc(name, code, *flags):
        subprocess.run(["cc", "-shared", "-fPIC", "-w", "-x", "c", "-", "-x", "none", f"-Wl,-soname,{name}", *flags,
                        "-o", folder / name], input=code, text=True, check=True)

    # The caller is linked with libraries without functions. The script's libraries provide the functions.
    for name in ("libcudart.so.12", "libnccl.so.2"):
        cc(name, "")
    cc("libcaller.so", CALLER, "-Wl,--no-as-needed", folder / "libcudart.so.12", folder / "libnccl.so.2",
       "-Wl,-rpath,$ORIGIN")
    subprocess.run([sys.executable, SCRIPT, tmp_path], check=True)
    caller = ctypes.CDLL(str(folder / "libcaller.so"))
    for name in ("error", "last", "result"):
        getattr(caller, name).restype = ctypes.c_char_p
        assert getattr(caller, name)() == b"CUDA is not installed", name
    assert caller.count() == 100
