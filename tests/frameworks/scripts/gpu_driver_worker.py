# SPDX-License-Identifier: Apache-2.0
"""gpu_driver_worker.py SCENARIO: events on a real GPU, caused with CUDA's driver API only.

    fault         a kernel of rank 0 writes to an unmapped address
    hold SECONDS  a process that is not a worker uses 4 GiB of the GPU's memory for so long
    fail FILE     the first attempt exits with 3 when FILE exists
"""

import ctypes
import os
import sys
import time

from ivycomm.compat.cuda_driver import Primary, driver

# Address 16 is in the page that is never mapped.
FAULTY = b"""
.version 7.0
.target sm_52
.address_size 64
.visible .entry faulty() {
    .reg .u64 %address;
    .reg .u32 %value;
    mov.u64 %address, 16;
    mov.u32 %value, 1;
    st.global.u32 [%address], %value;
    ret;
}
\0"""


def fault():
    time.sleep(2)  # By then ivy-probe has taken its first reading of the devices.
    if os.environ["RANK"] != "0":
        time.sleep(60)
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    with Primary(0):
        assert driver().cuModuleLoadData(ctypes.byref(module), FAULTY) == 0
        assert driver().cuModuleGetFunction(ctypes.byref(kernel), module, b"faulty") == 0
        assert driver().cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None) == 0
        code = driver().cuCtxSynchronize()
        print(f"the driver says {code}", flush=True)
        os._exit(5 if code != 0 else 0)


def hold(seconds):
    memory = ctypes.c_uint64()
    with Primary(0):
        assert driver().cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(4 << 30)) == 0
        print("held", flush=True)
        time.sleep(float(seconds))


def fail(path):
    if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
        print("ok fail", flush=True)
        return
    print("ready", flush=True)
    while not os.path.exists(path):
        time.sleep(0.05)
    sys.exit(3)


globals()[sys.argv[1]](*sys.argv[2:])
