# SPDX-License-Identifier: Apache-2.0
"""Sets up a simulated host. Runs in its first process, which then becomes the host's init.

The process is pid 1 in new namespaces, so only this host sees the mounts.
"""

import os
import shutil
import subprocess

from namespaces import (MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_PRIVATE, MS_RDONLY, MS_REC,
                        change_root, detach, mount, set_host_name)

USER = "ivyuser"
USER_ID = 2001
NOISY = 2          # This host's .bashrc prints.
OTHER_SHELLS = 3   # root's login shell is csh, the user's is fish.
LOOPBACK_NAME = 4  # This host's own name resolves to 127.0.1.1.
NOEXEC_HOME = 5
FULL_HOME = 6

# The kernel's rule for programs of aarch64, from Debian's qemu-user-static.
EMULATOR_RULE = "/usr/lib/binfmt.d/qemu-aarch64.conf"
OLD_ROOT = "/mnt"  # The machine's own root, while an arm64 host boots.

# The host's init: keeps sshd running, reaps orphans, and ignores signals, so that it exits only when the host is killed.
INIT = """
trap '' TERM INT HUP
while :; do /usr/sbin/sshd -D -f /run/testbed/sshd_config -E /run/testbed/sshd.log; sleep 1; done &
while :; do wait; sleep infinity; done
"""

SSHD_CONFIG = """
Port 22
HostKey /run/testbed/host_key
PidFile /run/testbed/sshd.pid
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
PrintMotd no
MaxStartups 1000:30:2000
MaxSessions 100
Subsystem sftp internal-sftp
"""

SSH_CONFIG = """
Host *
  StrictHostKeyChecking yes
  LogLevel ERROR
"""


class HostSettings:
    """The host's settings. They are read from the state directory before the host's mounts hide it."""

    def __init__(self, bed, number):
        self.number = number
        self.name = f"node{number}"
        self.repository = bed.repository
        self.boot_id = bed.new_boot_id()
        self.arm64_root = bed.arm64_root if bed.is_arm64(number) else None
        self.keys = {user: (bed.read(f"keys/{user}"), bed.read(f"keys/{user}.pub"))
                     for user in ("root", USER)}
        self.host_key = bed.read(f"{self.name}/host_key")
        self.known_hosts = bed.read("known_hosts")
        self.addresses = bed.address_lines()
        # These directories are opened because tmpfs mounts will hide their paths.
        self.shared_fd = os.open(bed.path("shared"), os.O_PATH)
        self.repository_fd = os.open(bed.repository, os.O_PATH)


def write(path, text, mode=0o644, owner=0):
    with open(path, "w") as file:
        file.write(text)
    os.chmod(path, mode)
    os.chown(path, owner, owner)


def tmpfs(path, size, mode="0755", flags=0):
    mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV | flags, f"size={size},mode={mode}")


def bind_file(path, text, mode=0o644):
    """Makes `text` the content of the file `path`, on this host only."""
    source = "/run/testbed/etc/" + os.path.basename(path)
    write(source, text, mode)
    mount(source, path, None, MS_BIND)


def mount_system(root=""):
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount("proc", f"{root}/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("sysfs", f"{root}/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC)


def enter_arm64_root(settings):
    """Makes the arm64 system this host's root. What the host writes to it is kept in memory."""
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    tmpfs("/srv", "1g")
    root = "/srv/root"
    for path in (root, "/srv/changes", "/srv/work"):
        os.mkdir(path)
    mount("overlay", root, "overlay", 0,
          f"lowerdir={settings.arm64_root},upperdir=/srv/changes,workdir=/srv/work")
    for path in ("/srv", OLD_ROOT):
        os.mkdir(root + path)
    for name in ("passwd", "group", "shadow", "hosts", "nsswitch.conf"):
        shutil.copy(f"/etc/{name}", f"{root}/etc/{name}")
    mount("/dev", f"{root}/dev", None, MS_BIND | MS_REC)
    mount_system(root)
    emulators = f"{root}/proc/sys/fs/binfmt_misc"
    mount("binfmt_misc", emulators, "binfmt_misc")
    with open(EMULATOR_RULE) as rule, open(f"{emulators}/register", "w") as register:
        # The kernel opens the emulator now, so the host's root needs no copy of it.
        register.write(next(line for line in rule if line.startswith(":")).strip())
    change_root(root, OLD_ROOT)


def mount_cgroups(number, has_memory_v1):
    """Mounts only cgroup v2, as Debian 12 does. Host 2 gets the hybrid layout if this machine has a v1 memory controller."""
    if number == NOISY and has_memory_v1:
        tmpfs("/sys/fs/cgroup", "1m")
        for kind, name, options in (("cgroup2", "unified", None), ("cgroup", "memory", "memory")):
            os.mkdir(f"/sys/fs/cgroup/{name}")
            mount(kind, f"/sys/fs/cgroup/{name}", kind, MS_NOSUID | MS_NODEV | MS_NOEXEC, options)
    else:
        mount("cgroup2", "/sys/fs/cgroup", "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC)


def mount_private_places(settings):
    tmpfs("/run", "64m")
    for path in ("/run/testbed/etc", "/run/sshd", "/run/lock"):
        os.makedirs(path, exist_ok=True)
    for path in ("/tmp", "/var/tmp", "/dev/shm"):
        tmpfs(path, "1g", "1777")
    tmpfs("/srv", "1m")
    os.mkdir("/srv/ivyshared")
    mount(f"/proc/self/fd/{settings.shared_fd}", "/srv/ivyshared", None, MS_BIND)
    flags = MS_NOEXEC if settings.number == NOEXEC_HOME else 0
    size = "64k" if settings.number == FULL_HOME else "256m"
    for path in ("/root", "/home"):
        tmpfs(path, size, "0700" if path == "/root" else "0755", flags)


def place_repository(settings):
    """Mounts the repository, with the build tree, on the launcher's host, and hides it on all other hosts."""
    path = settings.repository
    if settings.number != 1:
        if os.path.isdir(path):
            tmpfs(path, "4k", "0755", MS_RDONLY)
    elif not os.path.exists(os.path.join(path, "CMakeLists.txt")):
        os.makedirs(path, exist_ok=True)
        mount(f"/proc/self/fd/{settings.repository_fd}", path, None, MS_BIND | MS_REC)


def login_shells(number):
    return ("/bin/csh", "/usr/bin/fish") if number == OTHER_SHELLS else ("/bin/bash", "/bin/bash")


def make_accounts(settings):
    root_shell, user_shell = login_shells(settings.number)
    others = [line for line in open("/etc/passwd").read().splitlines()
              if not line.startswith(("root:", USER + ":"))]
    bind_file("/etc/passwd", "\n".join([f"root:x:0:0:root:/root:{root_shell}", *others,
              f"{USER}:x:{USER_ID}:{USER_ID}::/home/{USER}:{user_shell}"]) + "\n")
    groups = [line for line in open("/etc/group").read().splitlines()
              if not line.startswith(USER + ":")]
    bind_file("/etc/group", "\n".join([*groups, f"{USER}:x:{USER_ID}:"]) + "\n")
    # Both "*" and "!" prevent logins by password, but with "!" an sshd without PAM considers the account locked.
    names = (("root", "*"), ("sshd", "!"), (USER, "*"))
    bind_file("/etc/shadow", "".join(f"{name}:{word}:19000::::::\n" for name, word in names), 0o600)


def make_home(settings, user, home, owner):
    os.makedirs(home + "/.ssh", exist_ok=True)
    os.chmod(home + "/.ssh", 0o700)
    authorized = settings.keys[user][1]
    if user == USER:
        authorized += settings.keys["root"][1]
    write(home + "/.ssh/authorized_keys", authorized, 0o600, owner)
    write(home + "/.ssh/id_ed25519", settings.keys[user][0], 0o600, owner)
    write(home + "/.ssh/known_hosts", settings.known_hosts, 0o644, owner)
    write(home + "/.ssh/config", SSH_CONFIG, 0o644, owner)
    noise = "echo 'Welcome to node2! Have a nice day.'\necho 'This goes to stderr.' >&2\n"
    write(home + "/.bashrc", noise if settings.number == NOISY else "", 0o644, owner)
    os.chown(home + "/.ssh", owner, owner)
    os.chown(home, owner, owner)
    os.chmod(home, 0o700)


def fill(path):
    """Fills the file system with the file `path`."""
    try:
        with open(path, "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    except OSError:
        pass


def name_the_host(settings):
    set_host_name(settings.name)
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost"]
    if settings.number == LOOPBACK_NAME:
        lines.append(f"127.0.1.1 {settings.name}")
    for number, line in settings.addresses:
        if number != settings.number or settings.number != LOOPBACK_NAME:
            lines.append(line)
    bind_file("/etc/hosts", "\n".join(lines) + "\n")
    # The hosts have no name server, so names are resolved only from the file.
    bind_file("/etc/nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files\n")
    if os.path.exists("/etc/hostname"):
        bind_file("/etc/hostname", settings.name + "\n")


def prepare_sshd(settings):
    write("/run/testbed/host_key", settings.host_key, 0o600)
    write("/run/testbed/sshd_config", SSHD_CONFIG)


def become_host(settings, has_memory_v1, report):
    """Sets up the host and executes its init. Never returns. Calls report() with "ready" or with the error."""
    try:
        os.umask(0o022)
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        if settings.arm64_root:
            enter_arm64_root(settings)
        else:
            mount_system()
        mount_cgroups(settings.number, has_memory_v1)
        mount_private_places(settings)
        place_repository(settings)
        if settings.arm64_root:
            detach(OLD_ROOT)
        write("/run/testbed/boot_id", settings.boot_id + "\n", 0o444)
        mount("/run/testbed/boot_id", "/proc/sys/kernel/random/boot_id", None, MS_BIND)
        make_accounts(settings)
        name_the_host(settings)
        make_home(settings, "root", "/root", 0)
        make_home(settings, USER, f"/home/{USER}", USER_ID)
        prepare_sshd(settings)
        if settings.number == FULL_HOME:
            fill("/root/filler")
            fill("/home/filler")
        os.chdir("/")
        report("ready")
        os.execve("/bin/bash", ["init", "--norc", "-c", INIT],
                  {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"})
    except BaseException as error:  # Report any failure to the waiting parent.
        report(f"error: {error!r}")
        os._exit(1)
