# SPDX-License-Identifier: Apache-2.0
"""The manifests of docs/kubernetes, run in namespaces of the test hosts with the limits of a container: ivyrun or the agent
is PID 1, the root is read-only, /dev/shm has 64 MiB, cgroups are read-only, and the user id has neither a name nor
privileges.

Entries in each pod's /etc/hosts replace the cluster's DNS.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
import uuid

import pytest

from launching import BIN, REPOSITORY, seconds

from testbed import ipv4  # (found by way of launching)

yaml = pytest.importorskip("yaml")

MANIFESTS = os.path.join(REPOSITORY, "docs/kubernetes")
UID = 1000660000  # OpenShift chooses such ids.
DOMAIN = "default.svc.cluster.local"

# Arguments: host name, hosts file, supplementary group, then variables and the command. The mounts are private to the pod.
POD = r"""
set -e
mount --make-rprivate /
hostname "$1"
mount --bind "$2" /etc/hosts
mount -t proc proc /proc
mount -t tmpfs -o size=64m,mode=1777 shm /dev/shm
mount -t tmpfs -o mode=1777 tmp /tmp
# Mounts that another mount hides, such as the cgroup controllers of the machine below those of the host, are skipped: their
# path leads to no mount, or to a different one.
cut -d ' ' -f 1,5 /proc/self/mountinfo >/tmp/mounts
while read -r id place; do
  case $place in /proc*|/dev*|/tmp) continue ;; esac
  reached=$(sed -n 's/^mnt_id:[[:space:]]*//p' /proc/self/fdinfo/0 2>/dev/null <"$place") || continue
  [ "$reached" != "$id" ] || mount -o remount,bind,ro "$place"
done </tmp/mounts
rm /tmp/mounts
group=$3
shift 3
exec setpriv --reuid %d --regid 0 --groups "$group" --no-new-privs --bounding-set=-all --inh-caps=-all env -i "$@"
""" % UID

GENTLE = """
import os, signal, sys, time
def save(*_):
    time.sleep(0.5)
    print('saved', flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print('up', flush=True)
time.sleep(600)
"""
STUBBORN = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(600)\n"


def manifest(name):
    with open(os.path.join(MANIFESTS, name)) as file:
        return list(yaml.safe_load_all(file))


def of_kind(documents, kind):
    (found,) = [one for one in documents if one["kind"] == kind]
    return found


def container(template):
    (one,) = template["spec"]["containers"]
    return one


class Template:
    """A pod template of a manifest, and the names of its pods."""

    def __init__(self, template, names, subdomain, count):
        self.template, self.names, self.subdomain, self.count = template, names, subdomain, count
        self.container = container(template)

    def environment(self, secrets):
        values = {}
        for one in self.container.get("env", []):
            if "value" in one:
                values[one["name"]] = one["value"]
            else:
                reference = one["valueFrom"]["secretKeyRef"]
                values[one["name"]] = secrets[reference["name"], reference["key"]]
        return values

    def domain_name(self, index):
        return f"{self.names}-{index}.{self.subdomain}"


def indexed_job():
    job = of_kind(manifest("indexed-job.yaml"), "Job")
    template = job["spec"]["template"]
    return Template(template, job["metadata"]["name"], template["spec"]["subdomain"], job["spec"]["completions"])


def jobset():
    """Returns the template with the pod names and the subdomain (the JobSet's name) that JobSet's controller assigns."""
    whole = of_kind(manifest("jobset.yaml"), "JobSet")
    (jobs,) = whole["spec"]["replicatedJobs"]
    name = whole["metadata"]["name"]
    spec = jobs["template"]["spec"]
    return Template(spec["template"], f"{name}-{jobs['name']}-0", name, spec["completions"])


SECRETS = {("train-join", "secret"): "0123456789abcdef0123456789abcdef"}


class Cluster:
    """Pods on the test hosts."""

    def __init__(self, hosts, image):
        self.hosts, self.image = hosts, image
        self.names = {}  # Domain name -> address.

    def program(self, name):
        return f"{self.image}/bin/{name}"

    def start(self, template, index, node, command, environment, group=0):
        """Starts a pod on a host. It sets the service variables like the kubelet, and PATH like the container runtime."""
        name = f"{template.names}-{index}"
        own = f"{template.domain_name(index)}.{DOMAIN}"
        lines = ["# Kubernetes-managed hosts file.", "127.0.0.1\tlocalhost", f"{ipv4(node)}\t{own}\t{name}"]
        lines += [f"{address} {found} {found}.{DOMAIN}" for found, address in self.names.items()
                  if found != template.domain_name(index)]
        hosts_file = self.hosts.file(f"hosts-{name}", "\n".join(lines) + "\n")
        variables = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOSTNAME": name, "HOME": "/",
                     "KUBERNETES_SERVICE_HOST": "10.0.0.1", "IVY_PYTHON": "/usr/bin/python3", **environment}
        launcher = type(self.hosts)(self.hosts.bed, self.hosts.name, "root", node)
        run = launcher.start_program(
            "unshare", "--mount", "--uts", "--ipc", "--pid", "--cgroup", "--fork", "--kill-child", "sh", "-c", POD, "pod", name,
            hosts_file, str(group), *[f"{key}={value}" for key, value in variables.items()], *command)
        run.program = os.path.basename(command[0]).encode()  # PID 1 of the pod; when it exits, the kernel kills all of the pod's processes.
        return run

    @contextlib.contextmanager
    def job(self, template, *program, flags=(), without=(), env=None):
        """Starts all pods of a job. Pod 0 starts last: the others retry until it accepts connections."""
        self.names = {template.domain_name(index): ipv4(index + 1) for index in range(template.count)}
        command = template.container["command"]
        assert (command[0], command[-1]) == ("ivyrun", "train.py")
        words = [self.program("ivyrun"), *command[1:-1], *flags, *program]
        with contextlib.ExitStack() as stack:
            runs = {}
            for index in reversed(range(template.count)):
                values = {**template.environment(SECRETS), "JOB_COMPLETION_INDEX": str(index), **(env or {})}
                runs[index] = stack.enter_context(self.start(
                    template, index, index + 1, words, {name: value for name, value in values.items() if name not in without}))
            yield [runs[index] for index in range(template.count)]


@pytest.fixture(scope="module")
def image(testbed):
    """The container image: a directory that all hosts share, with the programs and the files that they send to hosts."""
    name = "image-" + uuid.uuid4().hex[:8]
    folder = os.path.join(testbed.shared, name)
    try:
        os.makedirs(f"{folder}/bin")
        for program in ("ivyrun", "ivy-node", "ivy-probe", "ivy-agent", "ivy-agent-cert"):
            shutil.copy2(os.path.join(BIN, program), f"{folder}/bin")
        shutil.copytree(os.path.join(os.path.dirname(BIN), "lib/ivyrun"), f"{folder}/lib/ivyrun")
        yield f"/srv/ivyshared/{name}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def cluster(hosts, image):
    return Cluster(hosts, image)


def everybody(done, code, *texts):
    for one in done:
        assert one.code == code, one
        for text in texts:
            assert re.search(text, one.own_text()), f"no {text!r} in {one!r}"


# ---- the Indexed Job and the JobSet ----------------------------------------------------------------

FACTS = """
import os
size = os.statvfs('/dev/shm')
try:
    open('/read-only', 'w')
    root = 'writable'
except OSError as error:
    root = error.strerror
trees = ['/sys/fs/cgroup', *(entry.path for entry in os.scandir('/sys/fs/cgroup') if entry.is_dir())]
can_write = any(os.access(tree, os.W_OK) or not os.statvfs(tree).f_flag & os.ST_RDONLY for tree in trees)
first = os.readlink('/proc/1/exe').rsplit('/', 1)[-1] if os.access('/proc/1/exe', os.R_OK) else open('/proc/1/comm').read().strip()
print(os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], 'uid', os.getuid(), 'shm', size.f_blocks * size.f_frsize >> 20,
      'pid1', first, 'root', root, 'cgroups', 'writable' if can_write else 'read-only')
"""


@pytest.mark.parametrize("template", [indexed_job, jobset])
def test_pods_of_a_manifest_are_one_job(cluster, hosts, template):
    template = template()
    with cluster.job(template, hosts.file("facts.py", FACTS)) as runs:
        done = [run.finish(60) for run in runs]
    everybody(done, 0, f"{template.count} hosts x 2 = {2 * template.count} ranks")
    for index, one in enumerate(done):
        assert b"can join this job" not in one.err, one
        assert sorted(one.labelled()) == [
            (rank, f"{template.names}-{index}",
             f"{rank} of {2 * template.count} uid {UID} shm 64 pid1 ivyrun root Read-only file system cgroups read-only")
            for rank in (2 * index, 2 * index + 1)], one


def test_all_pods_report_a_failure(cluster, hosts):
    script = hosts.file("fails.py", "import os, sys, time\nif os.environ['RANK'] == '3': sys.exit('broken data')\n"
                                    "time.sleep(600)\n")
    with cluster.job(indexed_job(), script) as runs:
        everybody([run.finish(60) for run in runs], 1, "IVY-R001", "rank 3 failed first", "broken data")


def test_a_pod_as_first_process_leaves_no_zombies(cluster, hosts):
    """Orphans become children of PID 1, which must reap them."""
    script = hosts.file("orphans.py", "import os, subprocess, time\n"
                                      "for _ in range(20): subprocess.run(['sh', '-c', 'sleep 0.1 &'])\n"
                                      "time.sleep(1.5)\n"
                                      "states = [open(f'/proc/{pid}/stat').read().rsplit(')', 1)[1].split()[0]\n"
                                      "          for pid in os.listdir('/proc') if pid.isdigit()]\n"
                                      "print('zombies', states.count('Z'))\n")
    with cluster.job(indexed_job(), script) as runs:
        done = [run.finish(60) for run in runs]
    everybody(done, 0)
    assert all(one.out.count(b"zombies 0") == 2 for one in done), done


def test_pods_of_an_indexed_job_without_a_number_of_nodes_are_rejected(cluster, hosts):
    with cluster.job(indexed_job(), hosts.file("facts.py", FACTS), without=("IVY_NNODES",)) as runs:
        everybody([run.finish(60) for run in runs], 2, r"this is pod \d of an Indexed Job", "IVY_NNODES", "--nnodes 1")
    with cluster.job(indexed_job(), hosts.file("facts.py", FACTS), flags=("--nnodes", "1")) as runs:
        everybody([run.finish(60) for run in runs], 0)


def test_a_pod_with_a_wrong_secret_is_rejected(cluster, hosts):
    template = indexed_job()
    script = hosts.file("facts.py", FACTS)
    cluster.names = {template.domain_name(index): ipv4(index + 1) for index in (0, 1)}
    words = [cluster.program("ivyrun"), "--start-timeout", f"{seconds(3):g}s", script]
    environment = template.environment(SECRETS)
    with cluster.start(template, 0, 1, words, {**environment, "JOB_COMPLETION_INDEX": "0"}) as first, \
         cluster.start(template, 1, 2, words, {**environment, "JOB_COMPLETION_INDEX": "1",
                                                "IVY_JOIN_SECRET": "another secret of 32 bytes......"}) as second:
        everybody([second.finish(60)], 122, "IVY-J004", "rejected this node")
        everybody([first.finish(60)], 120, "IVY-J003")


# ---- the end of a pod ------------------------------------------------------------------------------

def up(runs):
    for run in runs:
        run.wait_for("up", count=2, limit=60)


@pytest.mark.parametrize("who", [(0,), (1,), (0, 1)])
def test_term_of_a_pod_is_a_notice_for_all(cluster, hosts, who):
    with cluster.job(indexed_job(), hosts.file("gentle.py", GENTLE)) as runs:
        up(runs)
        for index in who:
            runs[index].signal(signal.SIGTERM)
        done = [run.finish(40) for run in runs]
    everybody(done, 75, "SIGTERM to 4 ranks: the pod is about to end", "stopped before the end of the pod")
    assert all(one.out.count(b"saved") == 2 for one in done), done


def test_ranks_that_exit_because_of_term_have_not_failed(cluster, hosts):
    script = hosts.file("plain.py", "import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    with cluster.job(indexed_job(), script) as runs:
        up(runs)
        runs[1].signal(signal.SIGTERM)
        done = [run.finish(40) for run in runs]
    everybody(done, 75, "stopped before the end of the pod")
    assert all("failed first" not in one.own_text() for one in done), done


def test_another_signal_may_be_the_notice(cluster, hosts):
    script = hosts.file("gentle.py", GENTLE.replace("SIGTERM", "SIGUSR1"))
    with cluster.job(indexed_job(), script, flags=("--preempt-signal", "USR1")) as runs:
        up(runs)
        runs[1].signal(signal.SIGTERM)
        done = [run.finish(40) for run in runs]
    everybody(done, 75, "SIGUSR1 to 4 ranks")
    assert all(one.out.count(b"saved") == 2 for one in done), done


def test_the_stop_is_before_the_end_of_the_grace_period(cluster, hosts):
    with cluster.job(indexed_job(), hosts.file("stubborn.py", STUBBORN), flags=("--stop-before-end", "8s")) as runs:
        up(runs)
        started = time.monotonic()
        runs[1].signal(signal.SIGTERM)
        done = [run.finish(40) for run in runs]
        took = time.monotonic() - started
    everybody(done, 75, "the pod ends: stopping 4 workers, KILL follows in 1 s")
    assert 5.5 < took < 8 + seconds(2), took


def test_a_second_term_stops_now(cluster, hosts):
    with cluster.job(indexed_job(), hosts.file("stubborn.py", STUBBORN), flags=("--shutdown-timeout", "1s")) as runs:
        up(runs)
        runs[1].signal(signal.SIGTERM)
        runs[0].wait_for("the pod is about to end")
        started = time.monotonic()
        runs[1].signal(signal.SIGTERM)
        done = [run.finish(40) for run in runs]
    everybody(done, 75)
    assert time.monotonic() - started < seconds(10), done


def test_term_before_all_pods_have_joined(cluster, hosts):
    template = indexed_job()
    words = [cluster.program("ivyrun"), hosts.file("facts.py", FACTS)]
    with cluster.start(template, 0, 1, words, {**template.environment(SECRETS), "JOB_COMPLETION_INDEX": "0"}) as first:
        first.wait_for("node 0 is waiting for node 1")
        first.signal(signal.SIGTERM)
        everybody([first.finish()], 75, "IVY-R011", "before all nodes had joined")


def test_kubectl_exec_is_not_the_pods_program(local):
    """For an ivyrun of `kubectl exec`, or in a shell of a notebook's pod, TERM has its usual meaning."""
    with local.start("sh", "-c", "echo up; exec sleep 600", env={"KUBERNETES_SERVICE_HOST": "10.0.0.1"}) as run:
        run.wait_for("up")
        run.signal(signal.SIGTERM)
        assert run.finish().code in (143, -signal.SIGTERM)


# ---- agents and a launcher pod ---------------------------------------------------------------------

class Agents:
    """Pods of the StatefulSet on node2 and node3; the launcher's pod is on node1."""

    def __init__(self, cluster):
        self.cluster, self.hosts = cluster, cluster.hosts
        documents = manifest("launcher-and-agents.yaml")
        self.set = of_kind(documents, "StatefulSet")
        self.job = of_kind(documents, "Job")
        self.pods = Template(self.set["spec"]["template"], self.set["metadata"]["name"], self.set["spec"]["serviceName"],
                             self.set["spec"]["replicas"])
        self.launcher = Template(self.job["spec"]["template"], "train", "none", 1)
        cluster.names = {self.pods.domain_name(index): ipv4(index + 2) for index in range(self.pods.count)}

    def make_secrets(self):
        """Runs the commands in the manifest's comment. Like the kubelet, it gives the files to root and the group fsGroup."""
        with open(os.path.join(MANIFESTS, "launcher-and-agents.yaml")) as file:
            commands = re.findall(r"^#   (ivy-agent .*)$", file.read(), re.MULTILINE)
        assert len(commands) == 3, commands
        self.hosts.file("secrets.sh", f"set -e\nexport HOME=$PWD PATH={self.cluster.image}/bin:$PATH\n" + "\n".join(commands) + "\n")
        made = self.hosts.run_program("sh", f"{self.hosts.directory}/secrets.sh", limit=60)
        assert made.code == 0, made
        os.makedirs(self.hosts.outside(f"{self.hosts.directory}/config"))
        for source, target in (("nodes", "host"), ("user", "config/ivyrun")):
            target = self.hosts.outside(f"{self.hosts.directory}/{target}")
            shutil.copytree(self.hosts.outside(f"{self.hosts.directory}/{source}"), target)
            os.chmod(target, 0o755)
            for name in os.listdir(target):
                os.chown(os.path.join(target, name), 0, self.group)
                os.chmod(os.path.join(target, name), 0o440)

    @property
    def group(self):
        return self.pods.template["spec"]["securityContext"]["fsGroup"]

    def start(self, index):
        command = [self.hosts.directory + "/host" if word == "/etc/ivyrun/agent" else word
                   for word in self.pods.container["command"]]
        assert command[0] == "ivy-agent"
        return self.cluster.start(self.pods, index, index + 2, [self.cluster.program("ivy-agent"), *command[1:]], {}, self.group)

    def launch(self, *program, flags=()):
        command = self.launcher.container["command"]
        assert (command[0], command[-1]) == ("ivyrun", "train.py")
        environment = {**self.launcher.environment({}), "XDG_CONFIG_HOME": f"{self.hosts.directory}/config"}
        words = [self.cluster.program("ivyrun"), *command[1:-1], *flags, *program]
        return self.cluster.start(self.launcher, 0, 1, words, environment, self.group)

    def hook(self, index):
        """Runs the preStop hook in the pod, as kubectl exec would."""
        command = self.pods.container["lifecycle"]["preStop"]["exec"]["command"]
        argv = ["nsenter", "-t", str(self.runs[index].pid()), "-m", "-u", "-i", "-n", "-p", "setpriv", "--reuid", str(UID),
                "--regid", "0", "--groups", str(self.group), "env", "-i", "HOME=/", "PATH=/usr/bin:/bin",
                self.cluster.program("ivy-agent"), *command[1:]]
        return subprocess.run(argv, capture_output=True, text=True, timeout=seconds(90))


@pytest.fixture
def agents(cluster):
    made = Agents(cluster)
    made.make_secrets()
    with contextlib.ExitStack() as stack:
        made.runs = [stack.enter_context(made.start(index)) for index in range(made.pods.count)]
        for run in made.runs:
            run.wait_for("ready")
        yield made


def test_a_launcher_pod_runs_jobs_on_the_pods_of_agents(agents, hosts):
    for _ in range(2):
        with agents.launch(hosts.file("facts.py", FACTS)) as run:
            done = run.finish(90)
        everybody([done], 0)
        assert sorted(done.labelled()) == [
            (rank, f"nodes-{rank // 2}.nodes",
             f"{rank} of 4 uid {UID} shm 64 pid1 ivy-agent root Read-only file system cgroups read-only")
            for rank in range(4)], done


def test_term_of_the_launcher_pod_is_a_notice(agents, hosts):
    with agents.launch(hosts.file("gentle.py", GENTLE)) as run:
        run.wait_for("up", count=4, limit=60)
        run.signal(signal.SIGTERM)
        done = run.finish(40)
    everybody([done], 75, "stopped before the end of the pod")
    assert done.out.count(b"saved") == 4, done


def test_the_hook_of_an_agents_pod_gives_its_ranks_time(agents, hosts):
    with agents.launch(hosts.file("gentle.py", GENTLE)) as run:
        run.wait_for("up", count=4, limit=60)
        hook = agents.hook(1)
        assert hook.returncode == 0, hook
        done = run.finish(60)
    everybody([done], 121, "IVY-R007", "nodes-1.nodes")
    assert done.out.count(b"saved") == 4, done


# ---- consistency of the manifests --------------------------------------------------------------------

@pytest.mark.parametrize("template", [indexed_job, jobset])
def test_numbers_and_names_of_a_manifest_agree(template):
    found = template()
    values = found.environment(SECRETS)
    assert values["IVY_NNODES"] == str(found.count)
    check_pod(found.template)
    if template is jobset:
        spec = of_kind(manifest("jobset.yaml"), "JobSet")["spec"]["replicatedJobs"][0]
        assert spec["replicas"] == 1
        spec = spec["template"]["spec"]
    else:
        documents = manifest("indexed-job.yaml")
        spec, service = of_kind(documents, "Job")["spec"], of_kind(documents, "Service")
        assert service["metadata"]["name"] == found.subdomain
        assert service["spec"]["clusterIP"] == "None" and service["spec"]["selector"] == {
            "batch.kubernetes.io/job-name": found.names}
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", found.count, found.count)
    on_codes = [rule["onExitCodes"] for rule in spec["podFailurePolicy"]["rules"] if "onExitCodes" in rule]
    assert on_codes == [{"containerName": found.container["name"], "operator": "In", "values": [75, 121]}]


def test_numbers_and_names_of_the_agents_agree():
    documents = manifest("launcher-and-agents.yaml")
    nodes, job, service = (of_kind(documents, kind) for kind in ("StatefulSet", "Job", "Service"))
    assert service["metadata"]["name"] == nodes["spec"]["serviceName"]
    assert service["spec"]["selector"] == nodes["spec"]["selector"]["matchLabels"] == nodes["spec"]["template"]["metadata"]["labels"]
    command = container(job["spec"]["template"])["command"]
    name = nodes["metadata"]["name"]
    assert command[command.index("-H") + 1] == f"{name}-[0-{nodes['spec']['replicas'] - 1}].{nodes['spec']['serviceName']}"
    for template in (nodes["spec"]["template"], job["spec"]["template"]):
        check_pod(template)


def check_pod(template):
    spec, one = template["spec"], container(template)
    if one["command"][0] == "ivyrun":
        assert one["command"][one["command"].index("--stop-before-end") + 1] == f"{spec['terminationGracePeriodSeconds']}s"
    assert one["securityContext"]["readOnlyRootFilesystem"] and not one["securityContext"]["allowPrivilegeEscalation"]
    assert {mount["name"] for mount in one["volumeMounts"]} == {volume["name"] for volume in spec["volumes"]}
    assert "/tmp" in {mount["mountPath"] for mount in one["volumeMounts"]}
