// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/message_table.h"

#include <algorithm>
#include <cctype>
#include <iterator>

#include "proto/contract/exit_code.h"
#include "proto/contract/text.h"
#include "proto/pages/command_page.h"

namespace ivy {
namespace {

constexpr MessageEntry kMessages[] = {
    {"IVY-U001", "invalid flag, value or combination, or forbidden by this host's policy",
     "a flag, its value, or two flags together are wrong; or /etc/ivyrun/policy.toml forbids a "
     "flag",
     "see the message; `ivyrun --help FLAG` describes the flag, and `ivyctl config --origin` shows "
     "where its value comes from",
     kExitUsage},
    {"IVY-U002", "`-x` or `--env-file` is wrong",
     "an invalid variable name, a variable that ivyrun itself sets, or a line that shells "
     "would interpret differently",
     "the message shows the variable, or file, line and column; docs/environment.md has the "
     "grammar",
     kExitUsage},
    {"IVY-P001", "more workers requested (`-n`) than there are slots",
     "`-n` exceeds the total number of slots, or of workers from `--nproc-per-node`",
     "use a smaller `-n`, more slots (`-H a:8`), or `--nproc-per-node N`", kExitUsage},
    {"IVY-P002", "more hosts requested (`--nnodes`) than are available",
     "`--nnodes` exceeds the number of hosts in `-H`, the hostfile or the allocation",
     "list more hosts, or leave out `--nnodes`", kExitUsage},
    {"IVY-P003", "the working directory cannot be entered on a host",
     "ivyrun starts workers in its own working directory, which is missing or not accessible there",
     "create it there, or use `--wdir DIR`", kExitRejected},
    {"IVY-P004", "the program was not found on a host",
     "its path does not exist there, or no directory of PATH contains it",
     "write its path, install it on every host, or use a shared directory", kExitNotFound},
    {"IVY-P005", "the program cannot be run on a host",
     "it is not executable, is a directory, or is built for another machine",
     "use chmod +x, or put its interpreter before it", kExitNotExecutable},
    {"IVY-P006", "a host has no interpreter for the script",
     "there is no python3 on its PATH, or the interpreter of `--python` is missing there",
     "install Python there, or use `--python PATH`", kExitNotFound},
    {"IVY-P007", "the script differs between hosts",
     "the hosts have separate copies, and one of them is outdated",
     "copy the same file to every host, or use a shared directory", kExitRejected},
    {"IVY-P008", "hosts have different versions of the interpreter",
     "Python was installed separately on them; pickles and wheels may be incompatible",
     "use `--python PATH` with an interpreter that is the same "
     "everywhere",
     ""},
    {"IVY-P009", "no port could be reserved for the workers",
     "all ports of the range are in use, or another program uses the port",
     "another `--port-range` or `--master-port`", kExitRejected},
    {"IVY-P010", "`--nproc-per-node gpu`, but a host shows no accelerator",
     "its driver is missing, or CUDA_VISIBLE_DEVICES hides all accelerators",
     "run `nvidia-smi` there; `--nproc-per-node N` starts N workers without accelerators",
     kExitRejected},
    {"IVY-P011", "fewer accelerators than workers that need one each",
     "`--visible own`, `--gpus-per-proc` or `--nproc-per-node gpu` requires more accelerators than "
     "exist",
     "start fewer workers, or use `--oversubscribe`", kExitRejected},
    {"IVY-P012", "an argument of the program is longer than Linux allows",
     "a list of files or a configuration was passed on the command line", "put it into a file",
     kExitRejected},
    {"IVY-P013", "the interface of `--iface` has no usable address",
     "it has a different name on the first host, or it is down",
     "use `--iface` with a name that the message lists", kExitRejected},
    {"IVY-P014", "the first host has no known address", "the transport to it does not report one",
     "use `--master-addr ADDRESS`, at which the other hosts can reach it", kExitRejected},
    {"IVY-P015", "more processes on one host than are possible", "a typing error in a number",
     "start fewer processes or use more hosts", kExitUsage},
    {"IVY-P016", "a rank to show, to wrap or to give the input does not exist",
     "`--show-ranks`, `--local-ranks-filter`, `--wrap-ranks` or `--stdin` is greater than the last "
     "rank",
     "ranks count from 0", kExitUsage},
    {"IVY-P017", "a mask lists an accelerator that does not exist",
     "the caller's CUDA_VISIBLE_DEVICES (or a similar variable) does not match the host",
     "correct or unset it; `--dry-run` shows what each host has", kExitRejected},
    {"IVY-P018", "sources of accelerators disagree, or Slurm hides some",
     "the driver, NVML and the scheduler report different numbers",
     "compare `nvidia-smi -L` with the job's `--gres`", ""},
    {"IVY-P019", "`--gpus-per-task` of the Slurm job hides devices from workers",
     "each task of the step sees only its own devices",
     "leave it out of sbatch, or use `--gpus-per-proc K` here", kExitRejected},
    {"IVY-P020", "a Slurm job has devices that no host shows",
     "the driver on those hosts does not respond", "run `nvidia-smi` there", ""},
    {"IVY-P021", "several MIG instances for one worker", "a CUDA process can use only one instance",
     "use `--gpus-per-proc 1`, or no MIG", kExitRejected},
    {"IVY-P022", "`--master-addr` is not the first host",
     "rank 0 listens at that address, and runs on the first host of the list",
     "list that host first, or leave out `--master-addr`", kExitRejected},
    {"IVY-P023", "other hosts cannot reach this MASTER_ADDR",
     "`--iface lo` was used, or an address that every host has, such as docker0's",
     "leave it out: ivyrun chooses and tests the addresses", kExitRejected},
    {"IVY-P024", "N workers would be N worlds of one",
     "the program's library finds no peers under ivyrun (Horovod without `-B horovod`, an MPI that "
     "is not served)",
     "see docs/launching.md; use `--allow-singletons` if this is intended", kExitRejected},
    {"IVY-P025", "a program uses two MPI libraries, or different ones on different hosts",
     "libraries of MPICH and Open MPI in one program (a warning if the second is loaded later), "
     "or hosts with different installations",
     "build it with one MPI library, the same on every host", kExitRejected},
    {"IVY-P026", "MPI on several hosts needs the store", "`--no-store` was given",
     "leave out `--no-store`", kExitRejected},
    {"IVY-P027", "`--on-failure shrink` or `replace` with a program that links MPI",
     "an MPI world cannot lose a rank", "use `--max-restarts N` to restart all ranks",
     kExitRejected},
    {"IVY-P028", "`--map-by`: the domain or switch of some hosts is unknown (a warning)",
     "these hosts report no cluster UUID, clique or `SLURM_TOPOLOGY_ADDR`",
     "use `--map-by host`, or configure these hosts to report it", ""},
    {"IVY-P031", "versions of jaxlib, or (a warning) of torch or TensorFlow differ between hosts",
     "all processes of a world need the same version", "install the same version on every host",
     kExitRejected},
    {"IVY-P032", "a rank cannot reach JAX's coordinator",
     "a firewall between a host and the first host",
     "use `--port-range A-B` with ports that are open", ""},
    {"IVY-P033",
     "ranks have not called their framework's initialize() or init_process_group() while "
     "others wait there",
     "a rank takes a different code path, or is still loading", "`ivyctl stack` shows where it is",
     ""},
    {"IVY-P034", "`--app jax-service` without a Python program", "the service is part of JAX",
     "leave out `--app`", kExitRejected},
    {"IVY-P035", "`--app` or `--role` without a Python program whose interpreter it can use",
     "the app's servers run with the script's interpreter",
     "pass a Python script, or use `--python` ([apps](apps.md))", kExitRejected},
    {"IVY-P036", "each worker runs a framework on its own, as a world of size 1 (a warning)",
     "the framework was not given the ranks of the job",
     "do as the message says: `-B NAME`, `--app NAME`, or a call", ""},
    {"IVY-P037",
     "a framework numbers ranks differently than ivyrun, or than another framework of the same "
     "process (a warning)",
     "it has its own numbering, or another launcher runs in between (mpirun in a worker)",
     "do as the message says: use the framework's own rank, or only ivyrun", ""},
    {"IVY-P038", "two hosts of the list are the same machine",
     "the same machine is listed under two names", "list it once, with its slots: `-H NAME:2`",
     kExitRejected},
    {"IVY-P039", "a script's first line names a program other than Python (a warning)",
     "ivyrun runs `.py` files with the Python that it has chosen, not as their `#!` line says",
     "use `--no-python` to run the script as its first line says, or choose a Python with "
     "`--python PATH`",
     ""},
    {"IVY-P040", "the files of `--stage` cannot be used",
     "more files than `--stage-limit`, a file that changed while it was sent, a symbolic link out "
     "of the directory, or a "
     "name that is not UTF-8",
     "the message names the file; leave it out with `--stage='DIR:!PATTERN'`, or see "
     "docs/no-shared-files.md",
     kExitRejected},
    {"IVY-P050", "the container cannot be started on some hosts (`--container`)",
     "a host has no runtime or not the image, may not use it, or cannot show its GPUs in "
     "containers",
     "the message shows the cause for each host and what to do; see [containers](containers.md)",
     kExitRejected},
    {"IVY-P051", "hosts would use different container runtimes",
     "each host takes the first runtime that it has",
     "choose one that all hosts have: `--container-runtime NAME`", kExitRejected},
    {"IVY-P070", "`--preload` has no effect (a warning)",
     "the workers are not started as a Python program by ivyrun itself: another program, `--wrap`, "
     "a container, MPI, or an option of Python such as `-I`",
     "the message shows the reason; workers start in the usual way "
     "([warm workers](warm-workers.md))",
     ""},
    {"IVY-P075", "the job does not have a rank or host of `--drill`",
     "`ranks=` or `hosts=` names one that does not exist, or a fault of the network could only hit "
     "ivyrun's own machine",
     "`ivyrun --dry-run` shows ranks and hosts; see [drills](drills.md)", kExitUsage},
    {"IVY-P076", "a host cannot cause a fault of `--drill`",
     "no root, no iptables or tc, a directory that does not exist, or more free space than `size=`",
     "the message shows the host and the reason; see [drills](drills.md)", kExitRejected},
    {"IVY-H003", "hosts could not be reached",
     "a name without an address, no response, an unknown host key, a rejected login, or a program "
     "that could not be sent",
     "the message shows the step and the cause for each host, and a command to try: if `ssh -o "
     "BatchMode=yes HOST true` "
     "works, ivyrun works",
     kExitHostsNotUp},
    {"IVY-H010", "a host cannot reach the first host",
     "a firewall, or an address in a network that it does not have",
     "choose the network with `--iface NAME`, and open ports with `--port-range A-B`",
     kExitRejected},
    {"IVY-H011", "the job's store cannot listen",
     "the port is in use, or the address does not belong to the first host",
     "another `--port-range` or `--master-port`", kExitRejected},
    {"IVY-H013", "checks of `--doctor` failed",
     "a host does not respond, cannot reach the first host, or lacks something that the job needs",
     "each line that starts with FAIL says what to do", kExitFailed},
    {"IVY-H014", "the files of `--stage` could not be stored on a host",
     "its disk is full, the directory cannot be written, or the transfer made no progress",
     "the message names host, file and cause; choose another directory there with `--stage-to DIR`",
     kExitHostsNotUp},
    {"IVY-H015", "a host cannot use the Python environment of `--stage-venv`",
     "the host lacks that version of Python, has another architecture than the compiled packages, "
     "or `uv sync` failed "
     "there",
     "the message names the host, the file and the fix; `--stage-venv=uv` creates the environment "
     "on each host",
     kExitHostsNotUp},
    {"IVY-H020", "a host failed a check (`--check`)",
     "the command exited with another code than 0, reported \"ok\": false, or does not exist",
     "the message shows the host, the reason and the end of the output; repair the host, or do "
     "without it: `--exclude HOST`, `--spares K` or `--nnodes MIN:MAX`",
     kExitRejected},
    {"IVY-H021", "a host does not have the number of accelerators of `--expect-gpus`",
     "a device has failed, its driver is missing, or a mask hides it",
     "the message shows the reason, if the host knows it; `ivyrun --doctor` lists all devices",
     kExitRejected},
    {"IVY-H022", "a host is slower than the others (`--check-load`)",
     "another program uses it, its clock is throttled, or its network link has errors",
     "the message has the figures; see what else runs there", kExitRejected},
    {"IVY-H023", "the checks of a host did not finish in time",
     "a command hangs, or a file system does not respond there",
     "the message names the check; allow more time with `--check-timeout TIME`", kExitRejected},
    {"IVY-H024", "a host lacks something that the job needs, or could not be checked",
     "its disk is full, the working directory or /dev/shm is missing, or the checks broke off",
     "the message shows the reason and the fix", kExitRejected},
    {"IVY-J001",
     "torchrun mode: a node was started with a different build, program or number of workers",
     "command lines or installations differ",
     "use the same command on every node, except for `--node-rank`", kExitRejected},
    {"IVY-J002", "torchrun mode: two nodes have the same rank, or a node's rank is out of range",
     "two nodes have the same `--node-rank`, or it is not less than `--nnodes`",
     "number the nodes from 0", kExitRejected},
    {"IVY-J003", "torchrun mode: nodes did not join in time",
     "they were not started, or cannot reach node 0", "wait longer with `--start-timeout TIME`",
     kExitHostsNotUp},
    {"IVY-J004",
     "torchrun mode: node 0 could not be reached, or rejected this node",
     "it was not started, listens elsewhere, or has a different `--rdzv-id` or secret",
     "check `--master-addr` and `--master-port`",
     {kExitHostsNotUp, kExitRejected}},
    {"IVY-J005", "torchrun mode: node 0 closed the connection",
     "its ivyrun was killed, or the network failed", "see the output of node 0", kExitHostLost},
    {"IVY-R001", "a worker failed first, and the job was stopped",
     "its exit code or signal, and its traceback or last output, are below the message",
     "see its log; `--max-restarts N` "
     "restarts all workers",
     "its own"},
    {"IVY-R003", "the job was interrupted", "Ctrl-C, a signal to ivyrun, or `ivyctl stop`",
     "nothing is wrong", "128 + signal"},
    {"IVY-R005", "the job reached `--timeout`", "it ran for the whole time that was allowed",
     "use a longer `--timeout`", kExitTimeout},
    {"IVY-R006", "a host was lost",
     "it crashed, or its network was silent for longer than the lease",
     "its workers stop by themselves; check the host. `--nnodes MIN:MAX` continues without it, "
     "`--lease TIME` waits longer",
     kExitHostLost},
    {"IVY-R007", "the supervisor of a host was lost",
     "it was killed on that host (kill -9, out of memory)", "see that host's kernel log",
     kExitHostLost},
    {"IVY-R008", "the job's store was lost", "its process on the first host was killed",
     "see that host's kernel log; `--max-restarts N` restarts all workers with a new store",
     kExitHostLost},
    {"IVY-R010", "a script overwrites MASTER_ADDR or MASTER_PORT",
     "many scripts set them in case no launcher does",
     "use os.environ.setdefault(...) in the script", ""},
    {"IVY-R011", "the job was stopped before the end of the Slurm allocation or of its pod",
     "`--stop-before-end` was reached, or a Kubernetes pod is being deleted",
     "use `--requeue` to requeue the Slurm job; in Kubernetes, ignore exit code 75 in the Job's "
     "podFailurePolicy",
     kExitPreempted},
    {"IVY-R012", "`scontrol requeue` failed",
     "the Slurm job had ended, or requeueing it is not allowed", "submit it with sbatch --requeue",
     kExitPreempted},
    {"IVY-R013", "the MPI ranks cannot reach each other",
     "the MPI server of a host exited, or was not found; or ranks use different MPI libraries, or "
     "different major "
     "versions of one",
     "use the same MPI library on every host; see docs/mpi.md for the requirements", kExitRejected},
    {"IVY-R014", "a worker could not join the MPI world",
     "its MPI library cannot connect to the host's server",
     "see docs/mpi.md for the supported libraries", kExitRejected},
    {"IVY-R015", "ranks have not called MPI_Init while others wait there",
     "a rank takes a different code path, or is still "
     "loading",
     "`ivyctl stack` shows where it is", ""},
    {"IVY-R016", "JAX's coordination service exited (`--app jax-service`)",
     "its process failed on the first host", "see its requirements in docs/frameworks.md",
     kExitRejected},
    {"IVY-O001", "the reader of standard output exited",
     "a pipe such as `| head` read only part of the output", "nothing is wrong", kExitOutputClosed},
    {"IVY-O002", "log files cannot be opened",
     "the directory of `--log-dir` cannot be written, or does not respond",
     "use another `--log-dir DIR`", kExitRejected},
    {"IVY-O003", "the console did not take all output", "it is redirected to a full disk",
     "free some space, or keep the output on another disk with `--log-dir`", kExitInternal},
    {"IVY-O004", "files of `--fetch` are missing",
     "they are larger than `--fetch-limit` or the free space here, changed while they were read, "
     "or a host was lost",
     "the warnings before the message name files and hosts; the files are still on the hosts",
     kExitFetchFailed},
    {"IVY-R018", "a server of `--app` or `--role` exited before the script did",
     "its last lines are below the message",
     "fix the problem that they show, or the command of the role", kExitFailed},
    {"IVY-R019", "a server of `--app` or `--role` did not become ready in time",
     "it starts slowly, or waits for something", "use a longer `--start-timeout` ([apps](apps.md))",
     kExitFailed},
    {"IVY-R020", "a rank could not open MASTER_PORT, where the job's store listens",
     "the script starts its own server at MASTER_PORT",
     "use another port in the script, or `--no-store`", ""},
    {"IVY-R021",
     "the job was stopped because its ranks made no progress (`--on-stall stop`, `--exit-timeout`)",
     "there was no progress for `--stall-timeout`, or for `--exit-timeout` after a rank had exited "
     "with 0; the report above shows where the ranks were and "
     "for which ranks they waited",
     "see [hangs](hangs.md); `--max-restarts N` restarts all workers", kExitStalled},
    {"IVY-R022", "the next attempt could not start within `--start-timeout`",
     "the job's store or a host did not respond; the message says which",
     "see that host's kernel log, or use a longer `--start-timeout`", kExitHostsNotUp},
    {"IVY-R023", "the attempts of a job make no progress (`--progress-match`, `--progress-file`)",
     "several attempts in a row failed before they reached a step, or wrote a checkpoint, that "
     "earlier ones had not; the message shows how each ended",
     "look at the cause of the last attempt; if a host is the cause, leave it out with "
     "`--exclude`, or let `--condemn-on` do so ([decide what is "
     "restarted](decide-what-is-restarted.md))",
     kExitNoProgress},
    {"IVY-R040", "the job was stopped because one of its hosts is going to be stopped",
     "a cloud, an administrator or a TERM to the host's supervisor has announced it, and too few "
     "other hosts are left",
     "run it again: exit code 75 means that it has not finished; with `--nnodes MIN:MAX` a job "
     "continues without the host ([spot machines](spot-and-preemptible.md))",
     kExitPreempted},
    {"IVY-R030", "a rank could not enter its container, or start its program there",
     "the container was removed while the job started, or the program is missing in the image",
     "see [containers](containers.md)", ""},
    {"IVY-X001", "internal error in ivyrun; the job was stopped cleanly",
     "no memory or descriptors left, or a bug "
     "in ivyrun",
     "check `ulimit -a`; if the limits suffice, report it", kExitInternal},
};

std::string exit_text(const MessageExit& exit) {
  if (exit.code != 0)
    return std::to_string(exit.code) + (exit.other == 0 ? "" : ", " + std::to_string(exit.other));
  return std::string(exit.text.empty() ? "the job continues (a warning or a note)" : exit.text);
}

// Returns "H003" for "IVY-H003", "h3" and "H003".
std::string short_message_id(std::string_view typed) {
  std::string text = lower_case(typed);
  if (text.starts_with("ivy-")) text = text.substr(4);
  if (text.size() < 2) return "";
  std::string digits = text.substr(1);
  if (digits.size() < 3) digits.insert(0, 3 - digits.size(), '0');
  return static_cast<char>(std::toupper(static_cast<unsigned char>(text.front()))) + digits;
}

}  // namespace

std::span<const MessageEntry> message_table() { return kMessages; }

const MessageEntry* find_message(std::string_view id) {
  const std::string wanted = "IVY-" + short_message_id(id);
  const auto* const found =
      std::find_if(std::begin(kMessages), std::end(kMessages),
                   [&](const MessageEntry& entry) { return entry.id == wanted; });
  return found == std::end(kMessages) ? nullptr : found;
}

std::string explain_message(const MessageEntry& entry) {
  constexpr std::size_t kExplainColumn = 10;
  std::string text = help_entry("", std::string(entry.id) + ": " + std::string(entry.meaning), 0);
  text += help_entry("  cause:", entry.cause, kExplainColumn);
  text += help_entry("  fix:", entry.fix, kExplainColumn);
  return text + help_entry("  exit:", exit_text(entry.exit), kExplainColumn);
}

std::string messages_page() {
  std::string text =
      "# When it fails\n"
      "Every message has the form `ivyrun: error[ID]: what`, then `where:`, `cause:` and `fix:`. "
      "Identifiers are\n"
      "stable; `ivyctl explain ID` prints the same explanations on a terminal. If a job "
      "fails, the last line\n"
      "names the source of its exit code: [endings and exit codes](endings-and-exit-codes.md). If "
      "a job makes no progress, see\n[hangs](hangs.md). This page is generated from the table of "
      "messages (`ivyctl --generate messages`).\n";
  for (const MessageEntry& entry : kMessages) {
    text += "\n## " + std::string(entry.id) + "\n**" + std::string(entry.meaning) + "**\n\n" +
            markdown_item("cause", entry.cause) + markdown_item("fix", entry.fix) +
            markdown_item("exit code", exit_text(entry.exit));
  }
  return text;
}

}  // namespace ivy
