# SPDX-License-Identifier: Apache-2.0
"""The choice of hosts, the number of workers on each, the order of ranks, and messages before the start."""

import ipaddress
import re
import socket

import pytest

WHO = ("sh", "-c", 'echo "$RANK $LOCAL_RANK $WORLD_SIZE $(hostname)"')


def placement(done):
    """Returns (rank, local rank, world size, host) in rank order, as printed by the workers."""
    assert done.code == 0, done
    rows = [text.split() for _, _, text in done.labelled()]
    rows = rows or [line.split() for line in done.out_lines]
    return sorted((int(rank), int(local), int(world), host) for rank, local, world, host in rows)


def test_rank_order_is_host_order(hosts):
    done = hosts.run("-H", "node3,node1,node2", *WHO)
    assert [(rank, host) for rank, _, _, host in placement(done)] == [
        (0, "node3"), (1, "node1"), (2, "node2")]
    assert {(rank, host) for rank, host, _ in done.labelled()} == {
        (0, "node3"), (1, "node1"), (2, "node2")}


def test_slots_in_the_host_list(hosts):
    done = hosts.run("-H", "node2:2,node1", *WHO)
    assert placement(done) == [(0, 0, 3, "node2"), (1, 1, 3, "node2"), (2, 0, 3, "node1")]


def test_each_host_of_a_list_is_a_node(hosts):
    """Each host of a list counts as a node."""
    done = hosts.run("-H", "node1,node2", "sh", "-c", 'echo "$IVY_NUM_NODES $GROUP_WORLD_SIZE $IVY_NODE_RANK $GROUP_RANK"')
    assert done.code == 0 and done.texts_by_rank() == {0: ["2 2 0 0"], 1: ["2 2 1 1"]}, done


def test_range_with_padding_and_workers_per_node(hosts):
    done = hosts.run("-H", "node[2-3]", "--nproc_per_node", "2", *WHO)
    assert [host for _, _, _, host in placement(done)] == ["node2", "node2", "node3", "node3"]


def test_a_user_before_the_host(hosts):
    done = hosts.run("-H", "node1,ivyuser@node2", "sh", "-c", 'echo "$RANK $(id -un)"')
    assert done.code == 0, done
    assert sorted(text for _, _, text in done.labelled()) == ["0 root", "1 ivyuser"]


def test_two_users_of_one_host_are_distinguished(hosts):
    planned = hosts.run("-H", "node2,ivyuser@node2,node1", "--dry-run", "true")
    assert planned.code == 0, planned
    rows = [line.split() for line in planned.out.decode().splitlines()]
    named = {word for row in rows for word in row if "node" in word and "=" not in word}
    assert {"node2", "ivyuser@node2", "node1"} <= named, planned
    assert "ivyuser@node1" not in planned.out.decode(), planned


def test_one_machine_under_two_names_is_rejected(hosts):
    done = hosts.run("-H", "node2,10.77.0.2", "--nproc-per-node", "1", "true")
    assert done.code == 122 and "IVY-P038" in done.err_text, done
    assert "node2 and 10.77.0.2 are the same machine" in done.err_text, done
    assert "list it only once, with its slots: -H node2:2" in done.err_text, done


def test_an_address_that_every_host_has_is_rejected_immediately(hosts):
    """Like the address of docker0: each host would connect to itself."""
    for number in (1, 2):
        added = hosts.run_on(number, "ip", "addr", "add", "192.168.99.1/24", "dev", "lo")
        assert added.code == 0, added
    try:
        done = hosts.run("-H", "node1,node2", "--nproc-per-node", "1", "--master-addr", "192.168.99.1", "true")
    finally:
        for number in (1, 2):
            hosts.run_on(number, "ip", "addr", "del", "192.168.99.1/24", "dev", "lo")
    assert done.code == 122 and "IVY-P023" in done.err_text, done
    assert "192.168.99.1, which node2 also has" in done.err_text, done


def test_hosts_of_another_scheduler_are_used(hosts):
    """Slots of such a list are processors; the number of workers is the default of other hosts."""
    pbs = {"PBS_JOBID": "7.head", "PBS_NODEFILE": hosts.file("nodes", "node1\nnode1\nnode2\n")}
    assert [row[3] for row in placement(hosts.run(*WHO, env=pbs))] == ["node1", "node2"]
    assert [row[3] for row in placement(hosts.run("-H", "node2", *WHO, env=pbs))] == ["node2"]
    done = hosts.run("--dry-run", *WHO, env=pbs)
    assert b"hosts from: PBS job 7.head\n" in done.out, done
    lsf = {"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "node2 4 node1 4"}
    assert [row[3] for row in placement(hosts.run("--nproc-per-node", "2", *WHO, env=lsf))] == ["node2"] * 2 + ["node1"] * 2


def test_repeated_host_is_one_host_with_more_slots(local):
    done = local.run("-H", "localhost:2,localhost:2", "sh", "-c",
                     'echo "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE"')
    assert done.code == 0, done
    assert sorted(text for _, _, text in done.labelled()) == [
        f"{rank} {rank} 4 4" for rank in range(4)]


def test_nnodes_takes_the_first_hosts(hosts):
    done = hosts.run("-H", "node2,node1,node3", "--nnodes", "2", *WHO)
    assert [host for _, _, _, host in placement(done)] == ["node2", "node1"]


def test_a_number_of_workers_is_spread_in_blocks_over_the_hosts(local):
    done = local.run("--fake-hosts", "2", "-n", "5", "sh", "-c", 'echo "$RANK $LOCAL_RANK"')
    assert done.code == 0, done
    hosts_of = {rank: host for rank, host, _ in done.labelled()}
    assert hosts_of == {0: "fake0", 1: "fake0", 2: "fake0", 3: "fake1", 4: "fake1"}


def test_a_number_of_workers_fills_the_first_slots(local):
    done = local.run("-H", "localhost:4", "-np", "3", "sh", "-c", 'echo "$RANK of $WORLD_SIZE"')
    assert done.code == 0, done
    assert sorted(text for _, _, text in done.labelled()) == ["0 of 3", "1 of 3", "2 of 3"]


def test_more_than_the_slots_shows_the_arithmetic(local):
    done = local.run("-H", "localhost:3", "-n", "5", "/bin/true")
    assert done.code in (2, 122), done
    assert re.search(r"\b5\b", done.own_text()) and re.search(r"\b3\b", done.own_text()), done
    assert "localhost:3" in done.own_text(), done
    assert "fix:" in done.own_text(), done


def test_default_is_one_worker_without_accelerators(hosts):
    done = hosts.run("-H", "node1,node2", "--nproc_per_node", "auto", *WHO)
    assert [world for _, _, world, _ in placement(done)] == [2, 2]


def test_dry_run_starts_nothing_and_shows_everything(hosts):
    flag = f"{hosts.directory}/started"
    done = hosts.run("--dry-run", "-H", "node1,node2,node3:2", "touch", flag)
    assert done.code == 0, done
    assert not hosts.exists("started")
    text = done.out.decode() + done.own_text()
    for name in ("node1", "node2", "node3"):
        assert name in text, done
    for rank in range(4):
        assert re.search(rf"\b{rank}\b", text), done
    assert "10.77.0.1" in text, "the workers' MASTER_ADDR is missing"
    assert "remote command" not in text, text
    done = hosts.run("--dry-run", "-v", "-H", "node2", "touch", flag)
    assert "remote command: " in done.out.decode(), done


def test_hostfile(hosts):
    path = hosts.file("hostfile", "# two hosts\nnode2 slots=2\nnode1:1   # the launcher's own\n")
    done = hosts.run("--hostfile", path, *WHO)
    assert [host for _, _, _, host in placement(done)] == ["node2", "node2", "node1"]


@pytest.mark.parametrize("content, place", [("a slots=2\nb slots=x\n", ":2"), ("a b c\n", ":1"),
                                            ("a\nh:1 slots=2\n", ":2:5")])
def test_broken_hostfile_names_the_line(local, content, place):
    path = local.file("hostfile", content)
    done = local.run("--hostfile", path, "/bin/true")
    assert done.code == 2, done
    assert f"hostfile{place}" in done.own_text(), done


def test_a_missing_or_empty_hostfile_is_an_error(local):
    for path in ("/nonexistent/hostfile", local.file("empty", "# nobody\n")):
        done = local.run("--hostfile", path, "sh", "-c", "echo started")
        assert done.code == 2, done
        assert path in done.own_text(), done
        assert b"started" not in done.out, done


def test_ipv6_host(hosts):
    done = hosts.run("-H", "[fd77::2],node3-v6", "sh", "-c", 'echo "$(hostname) $MASTER_ADDR"')
    assert done.code == 0, done
    assert sorted(text for _, _, text in done.labelled()) == ["node2 fd77::2", "node3 fd77::2"]


@pytest.mark.parametrize("first, address", [("node1", "10.77.0.1"), ("node4", "10.77.0.4")])
def test_workers_get_a_reachable_address(hosts, first, address):
    """The address is never a loopback address, even if the host's own name resolves to 127.0.1.1."""
    done = hosts.run("-H", f"{first},node2", "sh", "-c", "echo $MASTER_ADDR")
    assert done.code == 0, done
    assert {text for _, _, text in done.labelled()} == {address}


MASTER = ("sh", "-c", 'echo "$MASTER_ADDR"')


@pytest.mark.parametrize("name", ["localhost", socket.gethostname(), "127.0.0.1"])
def test_master_addr_by_name_on_this_machine(local, name):
    """Many torchrun users copy this line."""
    for flags, env in [(("--master_addr", name), {}), ((), {"PET_MASTER_ADDR": name})]:
        done = local.run("--nproc_per_node", "2", *flags, *MASTER, env=env)
        assert done.code == 0, done
        for _, _, address in done.labelled():
            ipaddress.ip_address(address)
        assert len(done.labelled()) == 2, done


def test_master_addr_by_name_of_the_first_host(hosts):
    """On node4 its own name resolves to 127.0.1.1; node3-v6 is a second name of node3."""
    for flag, name, listed, address in [("--master-addr", "node1", "node1,node2", "10.77.0.1"),
                                        ("--master_addr", "node4", "node4,node2", "10.77.0.4"),
                                        ("--master_addr", "node3-v6", "node3,node1", "fd77::3")]:
        done = hosts.run("-H", listed, flag, name, *MASTER)
        assert done.code == 0, done
        assert [text for _, _, text in done.labelled()] == [address] * 2, done
    done = hosts.run("-H", "node1,node2", *MASTER, env={"PET_MASTER_ADDR": "node1"})
    assert {text for _, _, text in done.labelled()} == {"10.77.0.1"}, done


@pytest.mark.parametrize("flags, said", [(("--master-addr", "node2"), "is host node2"),
                                         (("--master-addr", "10.77.0.2"), "is host node2"),
                                         (("--master-addr", "10.99.0.9"), "not an address of the first"),
                                         (("--master-addr", "nosuch.invalid"), "has no address"),
                                         (("--master-addr", "localhost"), "MASTER_ADDR would be"),
                                         (("--iface", "lo"), "MASTER_ADDR would be 127.0.0.1")])
def test_an_unusable_master_address_is_rejected_immediately(hosts, flags, said):
    for dry in ((), ("--dry-run",)):
        done = hosts.run(*dry, "-H", "node[1-2]", *flags, "sh", "-c", "echo started")
        assert done.code == 122, done
        assert said in done.own_text() and "fix:" in done.own_text(), done
        assert done.own_text().count("error[") == 1 and "stopped" not in done.own_text(), done
        assert b"started" not in done.out, done


def test_simulated_hosts_may_use_loopback(local):
    done = local.run("--fake-hosts", "2", "--iface", "lo", *MASTER)
    assert [text for _, _, text in done.labelled()] == ["127.0.0.1"] * 2, done


def test_firewall_is_named_before_workers_start(hosts):
    """The launcher reaches node3, but node3 does not reach node2, the host of rank 0."""
    block = ("ip", "route", "add", "blackhole", "10.77.0.2/32")
    assert hosts.run_on(3, *block).code == 0
    try:
        done = hosts.run("-H", "node2,node3", "sh", "-c", "echo started")
    finally:
        hosts.run_on(3, "ip", "route", "del", "blackhole", "10.77.0.2/32")
    assert done.code == 122, done
    assert "node3" in done.own_text() and "10.77.0.2" in done.own_text(), done
    assert b"started" not in done.out, done


@pytest.mark.parametrize("typed, meant", [("--nproc_per_nod", "--nproc-per-node"),
                                          ("--nproc", "--nproc-per-node"),
                                          ("-nproc", "--nproc-per-node"),
                                          ("--hostsfile", "--hostfile"), ("--dryrun", "--dry-run")])
def test_wrong_flag_shows_the_nearest_right_one(local, typed, meant):
    done = local.run(typed, "2", "/bin/true")
    assert done.code == 2, done
    assert typed in done.own_text(), done
    assert meant in done.own_text().replace("_", "-"), done


def test_one_dash_before_a_long_name_is_accepted(local):
    done = local.run("-nproc_per_node", "2", "sh", "-c", "echo started")
    assert done.code == 0 and done.out.count(b"started") == 2, done


def test_flag_with_two_meanings_is_rejected_with_both(local):
    done = local.run("-N", "2", "/bin/true")
    assert done.code == 2, done
    assert "--nnodes" in done.own_text() and "--nproc" in done.own_text(), done


def test_no_program_is_a_usage_error(local):
    done = local.run("-n", "2")
    assert done.code == 2, done
    assert done.own_text().startswith("ivyrun: "), done


def test_help_and_version(local):
    assert "--nproc" in local.run("--help").out.decode()
    assert re.search(r"\d+\.\d+", local.run("--version").out.decode())
