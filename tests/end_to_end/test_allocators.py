# SPDX-License-Identifier: Apache-2.0
"""Hosts of Flux, PALS and of a command (--hosts-from), with stand-ins for the schedulers' programs; and allocations of
several hosts that cannot be used, which ivyrun rejects."""

import os
import signal
import time

import pytest

from launching import PATH, seconds, wait_until

WHO = ("sh", "-c", 'echo "$RANK $(hostname)"')
URI = "local:///tmp/flux-x/local-0"


def hosts_of(done):
    """Returns the hosts of all ranks in rank order, as printed by the workers."""
    assert done.code == 0, done
    rows = [text for _, _, text in done.labelled()] or done.out_lines
    return [host for _, host in sorted((int(rank), host) for rank, host in map(str.split, rows))]


def refused(done, *parts):
    assert done.code == 2, done
    for part in parts:
        assert part in done.err_text, f"no {part!r} in {done!r}"
    assert not done.out, done


def flux(launcher, script):
    """Returns the environment inside `flux alloc`, with this shell script as `flux`."""
    launcher.file("flux", "#!/bin/sh\n" + script, 0o755)
    return {"FLUX_URI": URI, "PATH": f"{launcher.directory}:{PATH}"}


def instance(hostlist, owner=0):
    return f'case "$*" in "getattr hostlist") echo "{hostlist}";; "getattr security.owner") echo {owner};; *) exit 1;; esac\n'


# ---- Flux ----------------------------------------------------------------------------------------

def test_flux_hosts_come_from_the_instance(hosts):
    environment = flux(hosts, instance("node[1-2]"))
    assert hosts_of(hosts.run(*WHO, env=environment)) == ["node1", "node2"]
    assert hosts_of(hosts.run("-H", "node2", *WHO, env=environment)) == ["node2"]
    refused(hosts.run("-H", "node3", *WHO, env=environment), "node3 is not in the Flux instance (node[1-2])")
    done = hosts.run("--dry-run", *WHO, env=environment)
    assert b"hosts from: the Flux instance\n" in done.out, done


def test_the_flux_instance_of_another_user_is_ignored(local):
    environment = flux(local, instance("node[1-900]", owner=os.geteuid() + 1))
    assert len(hosts_of(local.run(*WHO, env=environment))) == 1


@pytest.mark.parametrize("script, said", [
    ("echo 'flux-getattr: Unable to connect to Flux: ENOENT' >&2; exit 1\n",
     "flux getattr hostlist: the command exited with code 1: flux-getattr: Unable to connect to Flux: ENOENT"),
    ("echo\n", "flux getattr hostlist printed nothing"),
    ("echo 'n[1-'\n", 'flux getattr hostlist, column 2: "n[1-" has an unmatched bracket'),
])
def test_flux_with_unknown_hosts_is_rejected(local, script, said):
    environment = flux(local, script)
    refused(local.run(*WHO, env=environment), said, "env -u FLUX_URI", "--transport local")
    # The suggested fixes work.
    assert local.run("--transport", "local", *WHO, env=environment).code == 0
    assert local.run("-H", "localhost", *WHO, env=environment).code == 0


def test_flux_without_its_command_is_rejected(local):
    refused(local.run(*WHO, env={"FLUX_URI": URI}), "start flux: No such file or directory", "-H host1,host2")


def test_tasks_of_flux_run_are_rejected(local):
    task = {**flux(local, "exit 9\n"), "FLUX_JOB_ID": "f2X", "FLUX_JOB_SIZE": "4", "FLUX_JOB_NNODES": "4"}
    refused(local.run(*WHO, env={**task, "FLUX_TASK_RANK": "0"}), "flux run started ivyrun 4 times",
            "run it inside flux alloc or flux batch, without flux run: ivyrun sh -c", "--node-rank $FLUX_TASK_RANK")
    other = local.run(*WHO, env={**task, "FLUX_TASK_RANK": "3"})
    assert other.code == 2 and not other.err, other
    # A job of one task has one host.
    assert len(hosts_of(local.run(*WHO, env={**task, "FLUX_TASK_RANK": "0", "FLUX_JOB_SIZE": "1"}))) == 1


# ---- PALS and other batch systems ----------------------------------------------------------------

def test_pals_hosts_come_from_pbs(hosts):
    pbs = {"PBS_JOBID": "7.head", "PBS_NODEFILE": hosts.file("nodes", "node2\nnode1\n")}
    script = {**pbs, "PALS_HOSTFILE": "unused"}
    assert hosts_of(hosts.run(*WHO, env=script)) == ["node2", "node1"]
    single = {**pbs, "PALS_APID": "a", "PALS_RANKID": "0", "PALS_NODEID": "0", "PMI_SIZE": "1", "PMI_RANK": "0"}
    assert hosts_of(hosts.run(*WHO, env=single)) == ["node2", "node1"]


def test_tasks_of_pals_are_rejected(local):
    task = {"PALS_APID": "a", "PALS_NODEID": "0", "PMI_SIZE": "8"}
    refused(local.run(*WHO, env={**task, "PALS_RANKID": "0"}), "mpiexec (PALS) started ivyrun 8 times",
            "--node-rank $PALS_NODEID")
    other = local.run(*WHO, env={**task, "PALS_RANKID": "5"})
    assert other.code == 2 and not other.err, other


def test_an_unreadable_host_list_of_a_scheduler_is_rejected(local):
    missing = {"PBS_JOBID": "7.head", "PBS_NODEFILE": "/no/such/file"}
    refused(local.run(*WHO, env=missing), "PBS_NODEFILE: cannot read /no/such/file", "env -u PBS_JOBID ivyrun")
    assert local.run("--transport", "local", *WHO, env=missing).code == 0
    assert local.run("-H", "localhost", *WHO, env=missing).code == 0


def test_several_hosts_without_a_list_are_rejected(local):
    refused(local.run(*WHO, env={"PBS_JOBID": "7.head", "PBS_NUM_NODES": "2"}),
            "PBS_NUM_NODES=2, but PBS_NODEFILE is not set", "--transport local")


# ---- --hosts-from --------------------------------------------------------------------------------

def test_hosts_from_uses_the_hosts_that_a_command_prints(hosts):
    assert hosts_of(hosts.run("--hosts-from", "echo node2 slots=2; echo '# none' | cat; printf 'node[1-1]'", *WHO)) == [
        "node2", "node2", "node1"]
    done = hosts.run("--dry-run", *WHO, env={"IVY_HOSTS_FROM": "echo node2; pwd >&2"})
    assert done.code == 0 and b"hosts from: --hosts-from\n" in done.out, done
    assert hosts_of(hosts.run("--hosts-from", 'cat "$LIST"', *WHO, env={"LIST": hosts.file("list", "node2\n")})) == ["node2"]


@pytest.mark.parametrize("command, said", [
    ("echo one >&2; echo 'no such pool' >&2; exit 3", "--hosts-from: the command exited with code 3: no such pool"),
    ("no-such-command", "not found"),
    ("kill -9 $$", "--hosts-from: the command was killed by SIGKILL"),
    (":", "--hosts-from: the command printed no hosts"),
    ("echo n1; echo; echo 'n2 slots=x'", '--hosts-from:3:10: "x" is not a number of slots'),
    ("echo 'n1;reboot'", '--hosts-from:1:1: "n1;reboot" is not a host name'),
    ("yes", "--hosts-from: the command printed more than 1048576 bytes"),
])
def test_a_host_command_without_valid_output_is_rejected(local, command, said):
    done = local.run("--hosts-from", command, *WHO)
    refused(done, said)
    assert "fix:" in done.err_text, done


def test_too_few_hosts_from_a_command_are_rejected(local):
    refused(local.run("--hosts-from", "echo localhost", "--nnodes", "2:3", *WHO), "--nnodes needs 2 hosts at least, but 1 was given")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_command_too(local, number):
    with local.start("--hosts-from", "echo here >&2; sleep 600 | cat", *WHO) as run:
        wait_until(lambda: len(local.processes()) >= 4, 20, "the command runs")
        run.signal(number)
        assert run.finish().code == -number
    local.wait_clean(5)


@pytest.mark.long
def test_a_host_command_that_hangs_times_out(local):
    started = time.monotonic()
    done = local.run("--hosts-from", "sleep 600", *WHO, limit=90)
    refused(done, "--hosts-from: the command has not finished within 60 s", "try the command in a shell: sleep 600")
    assert 59 < time.monotonic() - started < 60 + seconds(20), done


# A worker that prints its host in each attempt. In the first one, rank 0 replaces the list of hosts and fails.
ONCE = ("sh", "-c", 'echo "attempt $TORCHELASTIC_RESTART_COUNT $(hostname) of $WORLD_SIZE"; '
                    '[ $TORCHELASTIC_RESTART_COUNT = 0 ] && [ $RANK = 0 ] && { cat "$NEXT" > "$LIST"; exit 5; }; '
                    '[ $TORCHELASTIC_RESTART_COUNT = 0 ] && exec sleep 600; exit 0')


def restarted(hosts, first, then, *flags):
    """Runs a job whose list of hosts changes before its restart."""
    environment = {"LIST": hosts.file("list", first, 0o666), "NEXT": hosts.file("next", then)}
    exports = [word for name in environment for word in ("-x", name)]
    return hosts.run("--hosts-from", 'cat "$LIST"', "--max-restarts", "1", *flags, *exports, *ONCE, env=environment, limit=60)


def attempt_2(done):
    assert done.code == 0, done
    return sorted(text.split()[2:] for _, _, text in done.labelled() if "attempt 1" in text)


def test_a_restart_leaves_out_hosts_that_are_no_longer_listed(hosts):
    done = restarted(hosts, "node1\nnode2\nnode3\n", "node1\nnode3\n", "--nnodes", "2:3")
    assert attempt_2(done) == [["node1", "of", "2"], ["node3", "of", "2"]], done
    assert "without node2 (no longer in the list of --hosts-from)" in done.own_text(), done


def test_the_first_host_may_be_left_out(hosts):
    done = restarted(hosts, "node2\nnode1\nnode3\n", "node3\nnode1\n", "--nnodes", "2:3")
    assert attempt_2(done) == [["node1", "of", "2"], ["node3", "of", "2"]], done


def test_a_restart_names_hosts_that_it_cannot_add_or_drop(hosts):
    done = restarted(hosts, "node1\nnode2\n", "node1\nnode3\n")
    assert attempt_2(done) == [["node1", "of", "2"], ["node2", "of", "2"]], done
    assert "node3 is new in the list of --hosts-from, but no host can join a running job" in done.own_text(), done
    assert "node2 is no longer in the list of --hosts-from, but the number of hosts is fixed" in done.own_text(), done
    done = restarted(hosts, "node1\nnode2\n", "node1\n", "--nnodes", "2:3")
    assert "node2 is no longer in the list of --hosts-from, but --nnodes 2:3 needs it" in done.own_text(), done
    assert len(attempt_2(done)) == 2, done


@pytest.mark.parametrize("then, said", [("", "the command printed no hosts"), ("node1 x y\n", '"x" is not key=value')])
def test_a_restart_keeps_its_hosts_if_the_list_cannot_be_read(hosts, then, said):
    done = restarted(hosts, "node1\nnode2\n", then, "--nnodes", "1:2")
    assert len(attempt_2(done)) == 2, done
    assert said in done.own_text() and "the hosts stay as they are" in done.own_text(), done


def test_a_restart_names_the_command_that_it_waits_for_and_can_be_interrupted(local):
    flag = os.path.join(local.directory, "second")
    command = f"if [ -e {flag} ]; then sleep 600; fi; touch {flag}; echo localhost"
    with local.start("--hosts-from", command, "--max-restarts", "1", "sh", "-c", "exit 5",
                     env={"IVY_TEST_RESTART_PAUSE": "100ms"}) as run:
        run.wait_for("attempt 2 is waiting: the command of --hosts-from has not finished")
        run.signal(signal.SIGINT)
        assert run.finish().code in (130, -signal.SIGINT)
    local.wait_clean(5)
