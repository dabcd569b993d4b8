// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/message_table.h"

#include <algorithm>
#include <cctype>
#include <iterator>

#include "proto/contract/text.h"
#include "proto/pages/command_page.h"

namespace ivy {
namespace {

constexpr MessageEntry kMessages[] = {
    {"IVY-U001", "invalid flag, value or combination, or forbidden by this host's policy",
     "a flag, its value, or two flags together are wrong; or /etc/ivyrun/policy.toml forbids a "
     "flag",
     "the message names the flag and what to write; `ivyrun --help FLAG` says what it takes, "
     "`ivyctl config --origin` "
     "where a value comes from",
     "2"},
    {"IVY-U002", "`-x` or `--env-file` is wrong",
     "a name that is not a variable's, a variable that ivyrun itself sets, or a line that shells "
     "would read differently",
     "the message names the variable, or file, line and column; docs/environment.md has the "
     "grammar",
     "2"},
    {"IVY-P001", "more workers requested (`-n`) than there are slots",
     "`-n` is above the sum of the slots that are written, or of what `--nproc-per-node` gives",
     "a smaller `-n`, more slots (`-H a:8`), or `--nproc-per-node N`", "2"},
    {"IVY-P002", "more hosts requested (`--nnodes`) than are available",
     "`--nnodes` is above the number of hosts of `-H`, the hostfile or the allocation",
     "name more hosts, or leave `--nnodes` out", "2"},
    {"IVY-P003", "the working directory cannot be entered on a host",
     "ivyrun starts workers in the directory where it was typed, which is missing or closed there",
     "make it there, or `--wdir DIR`", "122"},
    {"IVY-P004", "the program was not found on a host",
     "its path is missing there, or its name is in no directory of PATH",
     "write the path, install it on every host, or use a shared directory", "127"},
    {"IVY-P005", "the program cannot be run on a host",
     "it is not executable, is a directory, or is built for another machine",
     "chmod +x, or put its interpreter in front of it", "126"},
    {"IVY-P006", "a host has no interpreter for the script",
     "no python3 on its PATH, or the one of `--python` is missing there",
     "install Python there, or `--python PATH`", "127"},
    {"IVY-P007", "the script differs between hosts",
     "hosts have copies of their own, and one of them is old",
     "copy the same file to every host, or use a shared directory", "122"},
    {"IVY-P008", "hosts have different versions of the interpreter",
     "their Pythons were installed separately; pickles and wheels may not fit",
     "`--python PATH` of one that is equal "
     "everywhere",
     ""},
    {"IVY-P009", "no port could be reserved for the workers",
     "the range is used up, or another program has the port",
     "another `--port-range` or `--master-port`", "122"},
    {"IVY-P010", "`--nproc-per-node gpu`, but a host shows no accelerator",
     "its driver is missing, or CUDA_VISIBLE_DEVICES hides all",
     "`nvidia-smi` there; `--nproc-per-node N` starts N workers without accelerators", "122"},
    {"IVY-P011", "more workers than accelerators where each should have its own",
     "`--visible own`, `--gpus-per-proc` or `--nproc-per-node gpu` asks for more than there are",
     "fewer workers, or `--oversubscribe`", "122"},
    {"IVY-P012", "an argument of the program is longer than Linux allows",
     "a list of files or a configuration stands on the command line", "put it into a file", "122"},
    {"IVY-P013", "the interface of `--iface` has no usable address",
     "its name is another one on the first host, or it is down",
     "`--iface` with a name that the message lists", "122"},
    {"IVY-P014", "no address of the first host is known", "it was reached by a way that shows none",
     "`--master-addr ADDRESS`, as the other hosts reach it", "122"},
    {"IVY-P015", "more processes on one host than are possible", "a number with a digit too many",
     "start fewer processes or use more hosts", "2"},
    {"IVY-P016", "a rank to show or to wrap does not exist",
     "`--show-ranks`, `--local-ranks-filter` or `--wrap-ranks` is above the last rank",
     "ranks count from 0", "2"},
    {"IVY-P017", "a mask names an accelerator that is not there",
     "CUDA_VISIBLE_DEVICES (or its like) of the caller does not fit the host",
     "correct or unset it; `--dry-run` shows what each host has", "122"},
    {"IVY-P018", "sources of accelerators disagree, or Slurm hides some",
     "driver, NVML and the scheduler count differently",
     "compare `nvidia-smi -L` with the job's `--gres`", ""},
    {"IVY-P019", "`--gpus-per-task` of the Slurm job hides devices from workers",
     "each task of the step sees its own devices alone",
     "leave it out of sbatch, or `--gpus-per-proc K` here", "122"},
    {"IVY-P020", "a Slurm job has devices that no host shows",
     "the driver on those hosts does not answer", "`nvidia-smi` there", ""},
    {"IVY-P021", "several MIG instances for one worker", "a CUDA process can use one instance only",
     "`--gpus-per-proc 1`, or no MIG", "122"},
    {"IVY-P022", "`--master-addr` is not the first host",
     "rank 0 listens there, and runs on the first host of the list",
     "put that host first, or leave `--master-addr` out", "122"},
    {"IVY-P023", "other hosts do not reach this MASTER_ADDR",
     "`--iface lo`, or an address that every host has itself, such as docker0's",
     "leave it out: addresses are chosen and tested", "122"},
    {"IVY-P024", "N workers would be N worlds of one",
     "the program's library finds no peers under ivyrun (Horovod without `-B horovod`, an MPI that "
     "is not served)",
     "docs/launching.md; `--allow-singletons` where that is meant", "122"},
    {"IVY-P025", "a program's MPI is two, or differs between hosts",
     "libraries of MPICH and Open MPI in one program (a warning where the second is loaded later), "
     "or hosts with different installations",
     "build it with one MPI, the same on every host", "122"},
    {"IVY-P026", "MPI on several hosts needs the store", "`--no-store` was given",
     "leave `--no-store` out", "122"},
    {"IVY-P027", "`--on-failure shrink` or `replace` with a program that links MPI",
     "an MPI world cannot lose a rank", "`--max-restarts N` starts all ranks again", "122"},
    {"IVY-P028", "`--map-by`: the domain or switch of some hosts is not known (a warning)",
     "no cluster UUID, clique or `SLURM_TOPOLOGY_ADDR` is seen there",
     "`--map-by host`, or let these hosts tell it", ""},
    {"IVY-P031", "versions of jaxlib, or (a warning) of torch or TensorFlow differ between hosts",
     "the processes of one world must be of one version", "install the same one on every host",
     "122"},
    {"IVY-P032", "JAX's coordinator is not reached", "a firewall between a host and the first one",
     "`--port-range A-B` with ports that are open", ""},
    {"IVY-P033",
     "ranks have not called their framework's initialize() or init_process_group() while "
     "others wait there",
     "a rank takes another path, or is still loading", "`ivyctl stack` shows where it is", ""},
    {"IVY-P034", "`--app jax-service` without a Python program", "the service belongs to JAX",
     "leave `--app` out", "122"},
    {"IVY-P035", "`--app` or `--role` without a Python program whose interpreter it could take",
     "the servers of the app start by the script's interpreter",
     "give a Python script, or `--python` ([apps](apps.md))", "122"},
    {"IVY-P036", "a framework that a worker imports is alone in its world (a warning)",
     "nothing told it of the other ranks",
     "what the message says: `-B NAME`, `--app NAME`, or a call", ""},
    {"IVY-P037",
     "a framework counts ranks in another way than ivyrun, or than another framework of the same "
     "process (a warning)",
     "it numbers ranks by its own rule, or another launcher stands in between (mpirun in a worker)",
     "what the message says: the framework's own rank, or ivyrun alone", ""},
    {"IVY-P038", "two hosts of the list are one machine", "the same machine by two names",
     "name it once, with its slots: `-H NAME:2`", "122"},
    {"IVY-P039", "a script's first line names another program than Python (a warning)",
     "ivyrun runs `.py` files by the Python that it has chosen, not by their `#!` line",
     "`--no-python` runs the script by its first line; `--python PATH` chooses a Python", ""},
    {"IVY-H003", "hosts could not be reached",
     "a name without an address, no answer, an unknown host key, a refused login, or a program "
     "that could not be sent",
     "the message names step and cause of each host, and a command to try: where `ssh -o "
     "BatchMode=yes HOST true` "
     "works, ivyrun works",
     "120"},
    {"IVY-H010", "a host cannot reach the first host",
     "a firewall, or an address of a network that it does not have",
     "`--iface NAME` chooses the network, `--port-range A-B` ports that are open", "122"},
    {"IVY-H011", "the job's store cannot listen",
     "the port is taken, or the address is not the first host's",
     "another `--port-range` or `--master-port`", "122"},
    {"IVY-H013", "checks of `--doctor` have failed",
     "a host does not answer, cannot reach the first one, or lacks what the job needs",
     "each line that begins with FAIL says what to do", "1"},
    {"IVY-J001",
     "torchrun mode: a node was started with another build, program or number of workers",
     "command lines or installations differ",
     "the same command on every node, except for `--node-rank`", "122"},
    {"IVY-J002", "torchrun mode: two nodes have one rank, or a rank is not one of the job's",
     "`--node-rank` was given twice, or is not below `--nnodes`", "number the nodes from 0", "122"},
    {"IVY-J003", "torchrun mode: nodes did not come in time",
     "they were not started, or cannot reach node 0", "`--start-timeout TIME` waits longer", "120"},
    {"IVY-J004", "torchrun mode: node 0 was not reached, or does not take this node in",
     "it has not been started, listens elsewhere, or has another `--rdzv-id` or secret",
     "check `--master-addr` and `--master-port`", "120, 122"},
    {"IVY-J005", "torchrun mode: node 0 closed the connection",
     "its ivyrun was killed, or the network broke", "see the output of node 0", "121"},
    {"IVY-R001", "a worker failed first, and the job was ended",
     "its exit code, signal, traceback and last words stand below the message",
     "see its log; `--max-restarts N` would "
     "start all again",
     "its own"},
    {"IVY-R003", "the job was interrupted", "Ctrl-C, a signal to ivyrun, or `ivyctl stop`",
     "nothing is wrong", "128 + signal"},
    {"IVY-R005", "the job reached `--timeout`", "it ran as long as it was allowed to",
     "a longer `--timeout`", "124"},
    {"IVY-R006", "a host was lost",
     "it crashed, or its network did not answer for the length of the lease",
     "its workers stop by themselves; check the host. `--nnodes MIN:MAX` goes on without it, "
     "`--lease TIME` waits longer",
     "121"},
    {"IVY-R007", "the supervisor of a host was lost",
     "it was killed on that host (kill -9, memory)", "see that host's kernel log", "121"},
    {"IVY-R008", "the job's store was lost", "its process on the first host was killed",
     "see that host's kernel log; `--max-restarts N` would start all again, with a new store",
     "121"},
    {"IVY-R010", "a script overwrites MASTER_ADDR or MASTER_PORT",
     "many scripts set them for the case that no launcher does",
     "os.environ.setdefault(...) in the script", ""},
    {"IVY-R011", "the job was stopped before the end of the Slurm allocation",
     "`--stop-before-end` was reached", "`--requeue` puts the Slurm job back into the queue", "75"},
    {"IVY-R012", "`scontrol requeue` failed", "the Slurm job had ended, or may not be requeued",
     "sbatch --requeue", "75"},
    {"IVY-R013", "the MPI ranks cannot reach each other",
     "the server of a host has ended, or was not found; or ranks have different MPIs, or major "
     "versions of it",
     "the same MPI on every host; docs/mpi.md says what is needed", "122"},
    {"IVY-R014", "a worker got no place in the MPI world",
     "its library does not speak to the host's server", "docs/mpi.md says what is served", "122"},
    {"IVY-R015", "ranks have not called MPI_Init while others wait there",
     "a rank takes another path, or is still "
     "loading",
     "`ivyctl stack` shows where it is", ""},
    {"IVY-R016", "JAX's coordination service has ended (`--app jax-service`)",
     "its process failed on the first host", "see its requirements in docs/frameworks.md", "122"},
    {"IVY-O001", "the reader of standard output went away", "a pipe such as `| head` had enough",
     "nothing is wrong", "141"},
    {"IVY-O002", "log files cannot be opened",
     "the folder of `--log-dir` cannot be written, or does not answer", "another `--log-dir DIR`",
     "122"},
    {"IVY-O003", "the console did not take all output", "a full disk behind a redirection",
     "free some space; `--log-dir` on another disk keeps the output", "125"},
    {"IVY-R018", "a server of `--app` or `--role` has ended before the script",
     "its last lines stand below the message", "mend what they say, or the command of the role",
     "1"},
    {"IVY-R019", "a server of `--app` or `--role` is not ready in time",
     "it starts slowly, or waits for something", "a longer `--start-timeout` ([apps](apps.md))",
     "1"},
    {"IVY-R020", "a rank could not open MASTER_PORT, where the job's store listens",
     "the script serves something of its own at MASTER_PORT",
     "another port in the script, or `--no-store`", ""},
    {"IVY-R021", "the job was stopped because its ranks made no progress (`--on-stall stop`)",
     "nothing had moved for `--stall-timeout`; where the ranks were, and whom they waited for, "
     "stands above the message",
     "see [hangs](hangs.md); `--max-restarts N` would start all again", "123"},
    {"IVY-R022", "the next attempt could not start in `--start-timeout`",
     "the job's store or a host did not answer; the message names it",
     "see that host's kernel log; a longer `--start-timeout`", "120"},
    {"IVY-X001", "internal error in ivyrun; the job was stopped cleanly",
     "no memory or descriptors, or a fault of "
     "ivyrun's own",
     "`ulimit -a`; where the limits suffice, report it", "125"},
};

// "H003" of "IVY-H003", "h3" or "H003".
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
  return text +
         help_entry(
             "  exit:", entry.exit.empty() ? "the job goes on (a warning or a note)" : entry.exit,
             kExplainColumn);
}

std::string messages_page() {
  std::string text =
      "# When it fails\n"
      "Every message has the form `ivyrun: error[ID]: what`, then `where:`, `cause:` and `fix:`. "
      "Identifiers are\n"
      "stable; `ivyctl explain ID` says on a terminal what stands here. After a job that did not "
      "end well, the last line\n"
      "says whose exit code it is: [endings and exit codes](endings-and-exit-codes.md). A job that "
      "does not end at all:\n"
      "[hangs](hangs.md). This page is made from the table of messages (`ivyctl --generate "
      "messages`).\n";
  for (const MessageEntry& entry : kMessages) {
    const std::string exit =
        entry.exit.empty() ? "the job goes on (a warning or a note)" : std::string(entry.exit);
    text += "\n## " + std::string(entry.id) + "\n**" + std::string(entry.meaning) + "**\n\n" +
            markdown_item("cause", entry.cause) + markdown_item("fix", entry.fix) +
            markdown_item("exit code", exit);
  }
  return text;
}

}  // namespace ivy
