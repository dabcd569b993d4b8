# SPDX-License-Identifier: Apache-2.0
"""Directories that replace "/" of hosts with accelerators (IVY_DEVICE_ROOT), with the contents of real hosts.

The texts are those of an 8 x A100 host (DGX A100: two packages, four NUMA nodes with devices), of a host with MIG,
and of a host with four MI250X dies. A test double (tests/children/nvml_double.c) replaces NVML.
"""

import os

from launching import REPOSITORY

DOUBLE = os.path.join(os.environ.get("IVY_BIN") or os.path.join(REPOSITORY, "build/bin"), "../children/nvml_double")
# Address, root of the PCI tree and NUMA node of each device of that host.
A100 = [("0000:07:00.0", "pci0000:00/0000:00:01.1", 3), ("0000:0f:00.0", "pci0000:00/0000:00:01.1", 3),
        ("0000:47:00.0", "pci0000:40/0000:40:01.1", 1), ("0000:4e:00.0", "pci0000:40/0000:40:01.1", 1),
        ("0000:87:00.0", "pci0000:80/0000:80:01.1", 7), ("0000:90:00.0", "pci0000:80/0000:80:01.1", 7),
        ("0000:b7:00.0", "pci0000:a0/0000:a0:01.1", 5), ("0000:bd:00.0", "pci0000:a0/0000:a0:01.1", 5)]
UUIDS = [f"GPU-{n}5a3b1c{n}-0c1d-4e2f-9a3b-{n}00000000abc" for n in range(8)]


def cpulist(node):
    """Returns the processors of one of eight NUMA nodes, each with 16 cores of two threads."""
    return f"{node * 16}-{node * 16 + 15},{128 + node * 16}-{128 + node * 16 + 15}"


class Tree:
    def __init__(self, path):
        self.path = str(path)
        self.nvml = []  # Lines for the test double.

    def processors(self, allowed):
        """Sets the processors that ivyrun may use on this host. The default is this machine's, so that workers can start."""
        self.write("proc/self/status", f"Name:\tivy-node\nCpus_allowed_list:\t{allowed}\n")
        return self

    def write(self, path, text=""):
        path = os.path.join(self.path, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)

    def link(self, path, target):
        path = os.path.join(self.path, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(target, path)

    def pci(self, address, parent, vendor, kind, node, cpus):
        place = f"sys/devices/{parent}/{address}"
        self.write(f"{place}/vendor", f"{vendor}\n")
        self.write(f"{place}/class", f"{kind}\n")
        self.write(f"{place}/numa_node", f"{node}\n")
        self.write(f"{place}/local_cpulist", f"{cpus}\n")
        self.link(f"sys/bus/pci/devices/{address}", f"../../../devices/{parent}/{address}")

    def network(self, name, address, parent):
        self.pci(address, parent, "0x15b3", "0x020000", -1, "")
        self.link(f"sys/class/net/{name}/device", f"../../../devices/{parent}/{address}")

    def nvidia(self, minor, address, parent, node, cpus, uuid, model="NVIDIA A100-SXM4-40GB", file="usable", mig=0):
        self.pci(address, parent, "0x10de", "0x030200", node, cpus)
        self.write(f"proc/driver/nvidia/gpus/{address}/information",
                   f"Model: \t\t {model}\nIRQ:   \t\t {200 + minor}\nGPU UUID: \t {uuid}\n"
                   f"Video BIOS: \t 92.00.45.00.03\nBus Type: \t PCIe\nDMA Size: \t 47 bits\n"
                   f"DMA Mask: \t 0x7fffffffffff\nBus Location: \t {address}\nDevice Minor: \t {minor}\n"
                   f"GPU Excluded:\t No\n")
        if file == "usable":
            self.write(f"dev/nvidia{minor}")
        elif file == "forbidden":  # A link to itself exists but cannot be opened, not even by root.
            self.link(f"dev/nvidia{minor}", f"nvidia{minor}")
        if file != "forbidden":
            self.nvml.append(f"gpu {address} {uuid} {minor} {mig} {model}")

    def intel(self, number, address, parent, tiles=1, file="usable"):
        """A discrete GPU from Intel as its driver xe shows it."""
        self.pci(address, parent, "0x8086", "0x038000", 0, "0-255")
        place = f"sys/devices/{parent}/{address}"
        for tile in range(tiles):
            self.write(f"{place}/tile{tile}/gt0/freq0/act_freq", "0\n")
        self.write(f"{place}/drm/renderD{128 + number}/dev", f"226:{128 + number}\n")
        self.link(f"sys/class/drm/card{number}/device", f"../../../devices/{parent}/{address}")
        if file == "usable":
            self.write(f"dev/dri/renderD{128 + number}")

    def mig(self, minor, gi, ci, uuid):
        self.write(f"proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{gi}/ci{ci}/access",
                   "DeviceFileMinor: 30\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
        self.nvml.append(f"slice {gi} {ci} {uuid}")

    def environment(self, nvml=True, **more):
        """Returns the variables that make ivyrun see this host instead of its own."""
        environment = {"IVY_DEVICE_ROOT": self.path, **more}
        if nvml:
            self.write("nvml", "\n".join(self.nvml) + "\n")
            environment |= {"LD_LIBRARY_PATH": DOUBLE, "NVML_DOUBLE": os.path.join(self.path, "nvml")}
        return environment


def eight_gpus(path, forbidden=()):
    tree = Tree(path)
    for minor, (address, parent, node) in enumerate(A100):
        tree.nvidia(minor, address, parent, node, cpulist(node), UUIDS[minor],
                    file="forbidden" if minor in forbidden else "usable")
    tree.network("ib0", "0000:0c:00.0", "pci0000:00/0000:00:01.1")
    tree.network("ib1", "0000:4b:00.0", "pci0000:40/0000:40:01.1")
    tree.network("eth0", "0000:e1:00.0", "pci0000:e0/0000:e0:01.1")
    return tree


def with_instances(path):
    """Returns a host with one whole GPU and one GPU that is split into three instances."""
    tree = Tree(path)
    tree.nvidia(0, *A100[0][:2], 0, "0-255", UUIDS[0])
    tree.nvidia(1, *A100[1][:2], 0, "0-255", UUIDS[1], mig=1)
    for gi, uuid in ((1, "MIG-1a2b3c4d-0000-5555-8888-000000000001"), (2, "MIG-1a2b3c4d-0000-5555-8888-000000000002"),
                     (5, "MIG-9f8e7d6c-0000-5555-8888-000000000005")):
        tree.mig(1, gi, 0, uuid)
    return tree


def two_intel(path, tiles=2):
    """Returns a host with two Data Center GPU Max cards and an integrated GPU, which does not count as an accelerator."""
    tree = Tree(path)
    tree.intel(0, "0000:00:02.0", "pci0000:00")
    tree.intel(1, "0000:9a:00.0", "pci0000:98/0000:98:01.0", tiles)
    tree.intel(2, "0000:1a:00.0", "pci0000:18/0000:18:01.0", tiles)
    return tree


def four_amd(path):
    tree = Tree(path)
    tree.write("dev/kfd")
    for node in (0, 1):  # Processors are nodes of that topology, too.
        tree.write(f"sys/class/kfd/kfd/topology/nodes/{node}/properties",
                   "cpu_cores_count 64\nsimd_count 0\ndomain 0\nlocation_id 0\nunique_id 0\ndrm_render_minor 0\n")
    for index in range(4):
        bus = 0xc1 + 5 * index
        address = f"0000:{bus:02x}:00.0"
        tree.pci(address, "pci0000:c0/0000:c0:01.1", "0x1002", "0x038000", 0, "0-255")
        tree.write(f"sys/class/kfd/kfd/topology/nodes/{2 + index}/properties",
                   f"cpu_cores_count 0\nsimd_count 440\nvendor_id 4098\ndevice_id 29704\n"
                   f"location_id {bus << 8}\ndomain 0\ndrm_render_minor {128 + index}\n"
                   f"unique_id {0x1d2c3b4a59680000 + index}\n")
        tree.write(f"dev/dri/renderD{128 + index}")
    return tree
