# SPDX-License-Identifier: Apache-2.0
"""Accelerators: discovery, visibility for each worker, and rejected requests.

This machine has no accelerators. Directory trees and a test double of NVML replace hosts that have some
(device_trees.py). The workers are real and print their variables.
"""

import json
import os
import signal
import time

import pytest

import device_trees as trees

SHOW = ("sh", "-c", 'echo "$(env | grep -E "^(IVY_DEVICE|CUDA_|HIP_|ROCR_|JAX_LOCAL|LOCAL_RANK|OMP_NUM|ASCEND)" '
        '| sort | tr "\\n" " ")"')


@pytest.fixture
def tree(tmp_path):
    return tmp_path / "root"


def variables(done):
    """Returns {rank: {name: value}} as printed by the workers."""
    assert done.code == 0, done
    rows = done.texts_by_rank() or {0: done.out_lines}
    return {rank: dict(word.split("=", 1) for word in lines[0].split()) for rank, lines in rows.items()}


def of_all(done, name):
    """Returns the values of the variable in rank order, with None for ranks where it is not set."""
    ranks = variables(done)
    return [ranks[rank].get(name) for rank in sorted(ranks)]


# ---- Discovery -------------------------------------------------------------------------------------

def test_one_worker_for_each_of_eight(local, tree):
    host = trees.eight_gpus(tree)
    done = local.run(*SHOW, env=host.environment())
    assert of_all(done, "LOCAL_RANK") == [str(n) for n in range(8)]
    assert of_all(done, "IVY_DEVICE_ORDINAL") == [str(n) for n in range(8)]
    assert of_all(done, "IVY_DEVICE_UUID") == trees.UUIDS
    assert of_all(done, "IVY_DEVICE_BDF") == [address for address, _, _ in trees.A100]
    assert of_all(done, "JAX_LOCAL_DEVICE_IDS") == [str(n) for n in range(8)]
    assert of_all(done, "CUDA_VISIBLE_DEVICES") == [None] * 8, "torch's scripts do not see all devices"
    assert of_all(done, "CUDA_DEVICE_ORDER") == ["PCI_BUS_ID"] * 8


def test_dry_run_shows_the_accelerators(local, tree):
    host = trees.eight_gpus(tree).processors("0-255")
    done = local.run("--dry-run", "/bin/true", env=host.environment())
    assert done.code == 0, done
    text = done.out.decode()
    assert "one per accelerator" in text and "known by NVML 535.104.05" in text, done
    row = next(line.split() for line in text.splitlines() if trees.UUIDS[2] in line)
    assert row == ["2", "localhost", "2", "2", "0000:47:00.0", trees.UUIDS[2], "16-31,144-159", "1", "ib1"]


def test_device_files_are_enough_without_nvml(local, tree):
    host = trees.eight_gpus(tree)
    done = local.run("-B", "numpy", *SHOW, env=host.environment(nvml=False))
    assert of_all(done, "IVY_DEVICE_UUID") == trees.UUIDS
    done = local.run("--dry-run", "/bin/true", env=host.environment(nvml=False))
    assert b"known by files, because NVML could not be queried: libnvidia-ml.so.1" in done.out, done


@pytest.mark.parametrize("double, reason", [("crash", "ivy-probe exited before its answer was complete"),
                                            ("refuse", "nvmlInit: Driver/library version mismatch")])
def test_devices_are_found_by_files_if_nvml_fails(local, tree, double, reason):
    environment = trees.eight_gpus(tree).environment()
    done = local.run("--dry-run", "/bin/true", env={**environment, "NVML_DOUBLE": double})
    assert done.code == 0 and b"1 host x 8 = 8 ranks" in done.out, done
    assert reason.encode() in done.out, done


def test_a_hanging_nvml_costs_two_seconds(local, tree):
    environment = trees.eight_gpus(tree).environment()
    done = local.run("--dry-run", "/bin/true", env={**environment, "NVML_DOUBLE": "hang"})
    assert done.code == 0 and b"1 host x 8 = 8 ranks" in done.out, done
    assert b"ivy-probe did not answer within 2000 ms" in done.out, done
    assert 1.9 < done.took < 10, done


def test_ctrl_c_does_not_wait_for_a_hanging_nvml(local, tree):
    environment = trees.eight_gpus(tree).environment()
    with local.start("-n", "2", "sleep", "100", env={**environment, "NVML_DOUBLE": "hang"}) as run:
        time.sleep(0.5)
        run.signal(signal.SIGINT)
        done = run.finish()
    assert done.code in (-signal.SIGINT, 130) and "interrupted by SIGINT" in done.own_text(), done


def test_each_worker_sees_one_mig_instance(local, tree):
    host = trees.with_instances(tree)
    done = local.run(*SHOW, env=host.environment())
    uuids = ["MIG-1a2b3c4d-0000-5555-8888-000000000001", "MIG-1a2b3c4d-0000-5555-8888-000000000002",
             "MIG-9f8e7d6c-0000-5555-8888-000000000005"]
    assert of_all(done, "CUDA_VISIBLE_DEVICES") == ["0"] + uuids
    assert of_all(done, "IVY_DEVICE_UUID") == [trees.UUIDS[0]] + uuids
    assert of_all(done, "LOCAL_RANK") == ["0"] * 4
    assert "each sees its own MIG instance" in done.own_text(), done


def test_amd_devices_are_found(local, tree):
    host = trees.four_amd(tree)
    done = local.run("-B", "numpy", *SHOW, env=host.environment(nvml=False))
    assert of_all(done, "HIP_VISIBLE_DEVICES") == ["0", "1", "2", "3"]
    assert of_all(done, "CUDA_VISIBLE_DEVICES") == [None] * 4
    assert of_all(done, "IVY_DEVICE_UUID")[1] == "GPU-1d2c3b4a59680001"
    # HIP counts the devices that ROCr leaves visible.
    done = local.run("-B", "numpy", *SHOW, env=host.environment(nvml=False, ROCR_VISIBLE_DEVICES="3,1"))
    assert of_all(done, "HIP_VISIBLE_DEVICES") == ["0", "1"]
    assert of_all(done, "IVY_DEVICE_BDF") == ["0000:d0:00.0", "0000:c6:00.0"]


def test_devices_that_cannot_be_opened_are_skipped(local, tree):
    host = trees.eight_gpus(tree, forbidden=(0, 1, 2, 6))
    done = local.run("-B", "numpy", *SHOW, env=host.environment())
    # CUDA counts only the devices that it can open.
    assert of_all(done, "CUDA_VISIBLE_DEVICES") == ["0", "1", "2", "3"]
    assert of_all(done, "IVY_DEVICE_UUID") == [trees.UUIDS[n] for n in (3, 4, 5, 7)]


def test_disagreeing_sources_are_reported(local, tree):
    host = trees.eight_gpus(tree)
    host.nvml = [line for line in host.nvml if "0000:4e:00.0" not in line]
    done = local.run(*SHOW, env=host.environment())
    assert len(variables(done)) == 7
    assert "NVML does not know 0000:4e:00.0, which the driver lists" in done.own_text(), done


def test_devices_in_use_are_named(local, tree):
    host = trees.eight_gpus(tree)
    host.nvml.insert(4, f"user 4711 {12 << 30}")
    done = local.run("/bin/true", env=host.environment())
    assert "accelerator 3 is in use by pid 4711 (12.0 GiB)" in done.own_text(), done


def test_a_device_of_many_processes_is_in_use(local, tree):
    """The device has more processes than ivyrun's first NVML query makes room for."""
    host = trees.eight_gpus(tree)
    host.nvml[4:4] = [f"user {pid} {1 << 30}" for pid in range(4711, 4731)]
    done = local.run("/bin/true", env=host.environment())
    assert "accelerator 3 is in use by pid 4711 and 19 more (20.0 GiB)" in done.own_text(), done


@pytest.mark.parametrize("file", ["nvidia0", "dxg"])
def test_devices_are_found_with_dev_only(local, tree, file):
    """A sandbox may hide /proc and /sys, and WSL has no GPU there."""
    host = trees.Tree(tree)
    host.write(f"dev/{file}")
    host.nvml = [f"gpu {trees.A100[0][0]} {trees.UUIDS[0]} 0 0 NVIDIA A100-SXM4-40GB"]
    done = local.run("--label", "rank", *SHOW, env=host.environment())
    assert of_all(done, "IVY_DEVICE_UUID") == [trees.UUIDS[0]]


def test_several_instances_for_one_worker_are_rejected(local, tree):
    done = local.run("--gpus_per_proc", "2", "/bin/true", env=trees.with_instances(tree).environment())
    assert done.code == 122 and "IVY-P021" in done.own_text(), done
    assert "a process use only one MIG instance" in done.own_text(), done


# ---- Masks -----------------------------------------------------------------------------------------

@pytest.mark.parametrize("mask, uuids, own", [
    ("4,2", (4, 2), "4 2"), (f"{trees.UUIDS[5]},{trees.UUIDS[0][:8]}", (5, 0), f"{trees.UUIDS[5]} {trees.UUIDS[0][:8]}"),
    ("1,9,2", (1,), "1")])
def test_an_inherited_mask_is_mapped_through(local, tree, mask, uuids, own):
    host = trees.eight_gpus(tree)
    environment = host.environment(CUDA_VISIBLE_DEVICES=mask)
    done = local.run("--label", "rank", "-B", "cupy", *SHOW, env=environment)
    assert of_all(done, "IVY_DEVICE_UUID") == [trees.UUIDS[n] for n in uuids]
    assert of_all(done, "CUDA_VISIBLE_DEVICES") == own.split()
    assert ("IVY-P017" in done.own_text()) == ("9" in mask.split(",")), done
    done = local.run("--label", "rank", *SHOW, env=environment)
    assert of_all(done, "CUDA_VISIBLE_DEVICES") == [mask] * len(uuids), "torch's workers do not keep the mask"
    assert of_all(done, "IVY_DEVICE_ORDINAL") == [str(n) for n in range(len(uuids))]


@pytest.mark.parametrize("mask", ["", "-1", "NoDevFiles"])
def test_a_mask_that_hides_all_devices_is_respected(local, tree, mask):
    done = local.run("--label", "rank", *SHOW, env=trees.eight_gpus(tree).environment(CUDA_VISIBLE_DEVICES=mask))
    assert of_all(done, "IVY_DEVICE_ORDINAL") == [None]
    assert of_all(done, "CUDA_VISIBLE_DEVICES") == [mask]


def test_a_mask_without_devices_is_rejected(local, tree):
    done = local.run("/bin/true", env=trees.eight_gpus(tree).environment(CUDA_VISIBLE_DEVICES="8,9"))
    assert done.code == 122 and "IVY-P017" in done.own_text(), done
    assert "CUDA_VISIBLE_DEVICES=8,9 lists no accelerator" in done.own_text(), done
    assert "there is no device 8, only 0-7" in done.own_text() and "fix:" in done.own_text(), done


def test_a_mask_by_x_counts_as_one_of_the_host(local, tree):
    done = local.run("-x", "CUDA_VISIBLE_DEVICES=6,7", "--visible", "own", *SHOW, env=trees.eight_gpus(tree).environment())
    assert of_all(done, "CUDA_VISIBLE_DEVICES") == ["6", "7"]
    assert of_all(done, "LOCAL_RANK") == ["0", "0"]


def test_the_launchers_mask_is_not_sent_to_other_hosts(hosts):
    done = hosts.run("-H", "node2", "sh", "-c", 'echo "mask=$CUDA_VISIBLE_DEVICES"', env={"CUDA_VISIBLE_DEVICES": "3"})
    assert done.code == 0 and b"mask=\n" in done.out, done


# ---- Visible devices -------------------------------------------------------------------------------

def test_own_is_torchruns_virtual_local_rank(local, tree):
    done = local.run("-n", "4", "--virtual-local-rank", *SHOW, env=trees.eight_gpus(tree).environment())
    assert of_all(done, "CUDA_VISIBLE_DEVICES") == ["0", "1", "2", "3"]
    assert of_all(done, "LOCAL_RANK") == of_all(done, "IVY_DEVICE_ORDINAL") == ["0"] * 4
    assert of_all(done, "JAX_LOCAL_DEVICE_IDS") == ["0"] * 4
    assert "each sees its own accelerator" in done.own_text(), done


@pytest.mark.parametrize("profile, sees_own", [("torch", False), ("jax", False), ("tensorflow", True), ("numpy", True),
                                               ("cupy", True), ("mpi", True)])
def test_the_profile_decides_whether_workers_see_one_device(local, tree, profile, sees_own):
    # Without --allow-singletons, profiles that are not supported yet are rejected.
    done = local.run("-n", "2", "-B", profile, "--allow-singletons", *SHOW, env=trees.eight_gpus(tree).environment())
    assert of_all(done, "CUDA_VISIBLE_DEVICES") == (["0", "1"] if sees_own else [None, None])


def test_each_worker_gets_several_devices(local, tree):
    environment = trees.eight_gpus(tree).environment()
    done = local.run("--gpus_per_proc", "2", *SHOW, env=environment)
    assert of_all(done, "CUDA_VISIBLE_DEVICES") == ["0,1", "2,3", "4,5", "6,7"]
    assert of_all(done, "IVY_DEVICE_ORDINAL") == ["0,1"] * 4
    done = local.run("--gpus_per_proc", "4", "-B", "jax", *SHOW, env=environment)
    assert of_all(done, "JAX_LOCAL_DEVICE_IDS") == ["0,1,2,3", "4,5,6,7"]
    assert of_all(done, "CUDA_VISIBLE_DEVICES") == [None, None]


def test_own_numbers_do_not_depend_on_cudas_order(local, tree):
    done = local.run("-n", "2", "--visible", "own", *SHOW,
                     env=trees.eight_gpus(tree).environment(CUDA_DEVICE_ORDER="FASTEST_FIRST"))
    assert of_all(done, "CUDA_VISIBLE_DEVICES") == trees.UUIDS[:2]


def test_device_env_sets_the_variable_of_another_vendor(local):
    done = local.run("-n", "2", "--gpus_per_proc", "2", "--oversubscribe", "--device-env", "ASCEND_RT_VISIBLE_DEVICES",
                     *SHOW)
    assert of_all(done, "ASCEND_RT_VISIBLE_DEVICES") == ["0,1", "2,3"]


def test_simulated_hosts_divide_or_share_devices(local, tree):
    environment = trees.eight_gpus(tree).environment()
    done = local.run("--fake-hosts", "2", *SHOW, env=environment)
    assert of_all(done, "CUDA_VISIBLE_DEVICES") == ["0,1,2,3"] * 4 + ["4,5,6,7"] * 4
    assert of_all(done, "IVY_DEVICE_UUID") == trees.UUIDS
    done = local.run("--fake-hosts", "2", "--visible", "own", *SHOW, env={**environment, "CUDA_VISIBLE_DEVICES": "7,1,3"})
    assert of_all(done, "CUDA_VISIBLE_DEVICES") == ["7", "1", "3"]
    done = local.run("--fake-hosts", "4", *SHOW, env={**environment, "CUDA_VISIBLE_DEVICES": "5,6"})
    assert of_all(done, "CUDA_VISIBLE_DEVICES") == ["5", "6", "5", "6"]
    assert "4 simulated hosts share 2 accelerators" in done.own_text(), done


def test_sharing_is_reported(local, tree):
    done = local.run("-n", "12", *SHOW, env=trees.eight_gpus(tree).environment())
    assert "12 workers share 8 accelerators" in done.own_text(), done
    assert of_all(done, "IVY_DEVICE_ORDINAL") == [str(n % 8) for n in range(12)]
    assert of_all(done, "JAX_LOCAL_DEVICE_IDS") == [None] * 12


@pytest.mark.parametrize("flags, what", [
    (("-n", "10", "--visible", "own"), "10 workers on localhost need 10 accelerators, 8 are visible"),
    (("-n", "3", "--gpus_per_proc", "3"), "3 workers on localhost with 3 accelerators each need 9, 8 are visible")])
def test_more_workers_than_slots_are_rejected(local, tree, flags, what):
    environment = trees.eight_gpus(tree).environment()
    done = local.run(*flags, *SHOW, env=environment)
    assert done.code == 122 and "IVY-P011" in done.own_text() and what in done.own_text(), done
    assert "--oversubscribe" in done.own_text(), done
    assert local.run(*flags, "--oversubscribe", *SHOW, env=environment).code == 0


def test_slurms_share_is_named_with_the_advice(local, tree):
    environment = trees.eight_gpus(tree, forbidden=range(1, 8)).environment(SLURM_GPUS_PER_TASK="1")
    done = local.run("--nproc_per_node", "8", "--visible", "own", "/bin/true", env=environment)
    assert done.code == 122, done
    assert "SLURM_GPUS_PER_TASK=1 gives each Slurm task its own" in done.own_text(), done
    assert "--gpus-per-node=8 --ntasks-per-node=1" in done.own_text(), done
    done = local.run("/bin/true", env=environment)
    assert done.code == 0 and "SLURM_GPUS_PER_TASK=1 hides 7 of 8 accelerators" in done.own_text(), done


def test_a_missing_gpu_is_explained(local, tree):
    environment = trees.eight_gpus(tree).environment(CUDA_VISIBLE_DEVICES="")
    done = local.run("--nproc_per_node", "gpu", "/bin/true", env=environment)
    assert done.code == 122 and "CUDA_VISIBLE_DEVICES= hides 8 of 8 accelerators" in done.own_text(), done


# ---- Cores -----------------------------------------------------------------------------------------

AFFINITY = ("/usr/bin/python3", "-c",
            "import json, os; print(json.dumps([sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS']]))")


def test_workers_are_bound_to_their_share(local):
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("only one processor may be used on this machine")
    done = local.run("-n", "2", "--bind-to", "core", "--report-bindings", *AFFINITY)
    shares = [json.loads(lines[0]) for _, lines in sorted(done.texts_by_rank().items())]
    assert shares[0][0] + shares[1][0] == allowed and shares[0][0] and shares[1][0], done
    assert [int(threads) for _, threads in shares] == [len(cores) for cores, _ in shares], done
    assert f"rank 0 on localhost: processors {shares[0][0][0]}" in done.own_text(), done
    done = local.run("-n", "2", "--bind-to", "none", *AFFINITY)
    assert [json.loads(lines[0])[0] for lines in done.texts_by_rank().values()] == [allowed] * 2


def test_the_probe_is_sent_with_ivy_node(hosts):
    done = hosts.run("-H", "node2", "--nproc_per_node", "2", "--bind-to", "core", *AFFINITY)
    assert done.code == 0, done
    shares = [json.loads(lines[0])[0] for _, lines in sorted(done.texts_by_rank().items())]
    assert sorted(shares[0] + shares[1]) == sorted(os.sched_getaffinity(0)), done
    listing = hosts.run_on(2, "sh", "-c", "ls ~/.cache/ivyrun/*/ivy-probe && ~/.cache/ivyrun/*/ivy-probe cores")
    assert listing.code == 0 and b"ivy core\t0" in listing.out, listing


def test_workers_stay_within_ivyruns_processors(local):
    first = min(os.sched_getaffinity(0))
    done = local.run_program("taskset", "-c", str(first), local.ivyrun(), "-n", "2", "--bind-to", "core", *AFFINITY)
    assert {lines[0] for lines in done.texts_by_rank().values()} == {f'[[{first}], "1"]'}, done


def test_workers_are_bound_near_the_accelerators_by_default(local, tree):
    host = trees.eight_gpus(tree).processors("0-63,128-191")
    done = local.run("--dry-run", "--report-bindings", "/bin/true", env=host.environment())
    assert b"bound to the cores near their accelerators" in done.out, done
    rows = {line.split()[0]: line for line in done.out.decode().splitlines() if "0000:" in line}
    assert "48-63,176-191  3" in rows["0"] and "16-31,144-159  1" in rows["3"], done
    assert "  any  " in rows["5"], "rank 5 is bound, but the processors near its device may not be used"
    done = local.run("--dry-run", "--bind-to", "none", "/bin/true", env=host.environment())
    assert b"bound to" not in done.out and b"48-63" not in done.out, done


# ---- --explain-env ---------------------------------------------------------------------------------

def test_explain_env(local, tree):
    done = local.run("--explain-env", "--visible", "own", "-x", "MODE=fast", "-n", "2", "touch", "started",
                     env=trees.eight_gpus(tree).environment(PMI_RANK="7"))
    assert done.code == 0 and not local.exists("started"), done
    rows = {line.split("=")[0].strip(): line for line in done.out.decode().splitlines() if "=" in line}
    assert "torch" in rows["MASTER_ADDR"] and "address at which every host reaches" in rows["MASTER_ADDR"], done
    assert rows["MODE"].split()[-1] == "-x", done
    assert "accelerators" in rows["CUDA_VISIBLE_DEVICES"], done
    assert b"removed from every worker: " in done.out and b"PMI_RANK" in done.out, done
    # The host's supervisor sets these for MPI programs.
    assert "PMI-1" in rows["PMI_RANK"] and "PMI_SIZE=2" in rows["PMI_SIZE"] and "PMIx" in rows["PMIX_RANK"], done
    alone = local.run("--explain-env", "-n", "2", "--allow-singletons", "true")
    assert alone.code == 0 and b"PMI_SIZE" not in alone.out, alone
    assert b"rank 1 on localhost:" in done.out and b"CUDA_VISIBLE_DEVICES=1" in done.out, done
