// SPDX-License-Identifier: Apache-2.0
// The user's options, validated as far as possible without side effects. The table of flags is
// option_table.h; CLI11 is used only in options.cc.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/options/app_table.h"
#include "launcher/options/host_filter.h"
#include "launcher/options/hosts.h"
#include "launcher/options/option_types.h"
#include "launcher/options/tf_roles.h"
#include "launcher/options/transport_kind.h"
#include "launcher/slurm/slurm_allocation.h"
#include "proto/contract/env.h"
#include "proto/contract/status.h"

namespace ivy {

struct Policy;
struct Scanned;

// The hosts, and the number of workers on each.
struct HostOptions {
  // From -H, --hostfile, --fake-hosts or an allocation, in rank order, and cut to --nnodes. Main
  // makes this host of an empty list.
  std::vector<Host> hosts;
  std::string host_source;  // "-H", "hostfile x", "--fake-hosts", "Slurm job 7", or empty.
  // --include, --exclude: one of them at most; main applies them once all hosts are known.
  std::vector<HostPick> include, exclude;
  // The Slurm job whose hosts these are; none: outside of Slurm, or its allocation is not meant.
  std::optional<SlurmAllocation> allocation;
  std::string batch_job;  // "PBS job 7": another scheduler's job, whose hosts these are.
  std::optional<int> num_proc;
  std::optional<int> num_nodes;  // --nnodes N, or MAX of MIN:MAX
  // --nnodes MIN:MAX: this many hosts are enough (launcher/job/membership.h). Else all are needed.
  std::optional<int> min_nodes;
  PerHost per_host;
  MapChoice map_by = MapChoice::kHost;
};

// Accelerators and cores of the workers.
struct DeviceOptions {
  VisibleChoice visible = VisibleChoice::kAuto;
  std::optional<int> gpus_per_proc;     // From --gpus_per_proc; a worker has one else.
  std::optional<int> cpu_devices;       // --cpu-devices: what JAX makes of a worker's CPU.
  bool oversubscribe = false;           // Workers may share accelerators that were asked for.
  std::vector<std::string> device_env;  // --device-env: variables that get a worker's devices too.
  BindChoice bind_to = BindChoice::kAuto;
  bool report_bindings = false;
  bool display_map = false;  // --display map: the plan as --dry-run shows it, and then the job.
};

// The workers' program and variables.
struct WorkerOptions {
  Profile profile = Profile::kTorch;
  App app = App::kNone;
  AppSpec app_spec;  // App::kRoles: --app NAME or --role.
  std::vector<std::string> app_args;
  int app_workers = 1;  // --nproc-per-node of an app that runs one rank on each host.
  std::vector<TfRole> tf_roles;
  bool allow_singletons = false;  // N worlds of one are meant.
  ProgramKind program_kind = ProgramKind::kAuto;
  std::vector<std::string> command;  // Program and its arguments, byte for byte.
  std::string python;
  std::string working_directory;     // --wdir; empty: where ivyrun was started.
  std::vector<std::string> exports;  // -x K or K=V, in order.
  std::vector<std::string> env_files;
  EnvChoice env_choice = EnvChoice::kListed;
  std::vector<std::string> wrap;   // --wrap: words in front of the program, with placeholders.
  ShowRanks wrap_ranks;            // --wrap-ranks: which ranks get them.
  std::string activate;            // --activate: a virtual environment, or "conda:NAME".
  std::string stdin_choice = "0";  // --stdin: which ranks read it.
  bool no_python_hook = false;     // Python workers cannot be asked where they are.
  std::string nccl_profiler;       // --nccl-profiler; empty: not given, which is "calls".
};

// Display and storage of the workers' output.
struct OutputOptions {
  std::string label = "auto";  // --label: auto, none, rank, host, or a template.
  ColorChoice color = ColorChoice::kAuto;
  ShowRanks show_ranks;
  StreamChoice redirects;  // --redirects: these go to files alone,
  StreamChoice tee;        // --tee: but these to the console as well.
  std::string log_dir;     // --log-dir; empty: no such files.
  LogPlace log_to = LogPlace::kHead;
  std::string output;  // --output: a pattern of file names; empty: no such files.
  bool raw = false;
  bool timestamps = false;
  OverflowChoice overflow = OverflowChoice::kBlock;
  SummaryChoice summary = SummaryChoice::kAuto;
  std::string events;         // --events: an absolute path, or "fd:N"; empty: none.
  std::string name;           // --name: what people call the job.
  std::optional<bool> dedup;  // --dedup: equal lines are shown once; none: on a terminal.
  std::string metrics_file;   // --metrics-file: an absolute path; empty: none.
};

// When the job ends, is given up or starts again.
struct LifecycleOptions {
  std::chrono::milliseconds start_timeout{120'000};
  std::optional<std::chrono::milliseconds> timeout;
  // If set, it replaces both grace periods.
  std::optional<std::chrono::milliseconds> shutdown_timeout;
  std::optional<std::chrono::milliseconds> lease;
  std::chrono::seconds stall_timeout{0};  // Time until a stall is reported; 0: never.
  OnStall on_stall = OnStall::kReport;
  int max_restarts = 0;  // --max-restarts: how often a group that failed is started again.
  OnFailure on_failure = OnFailure::kRestart;
  int max_replacements = 0;  // --max-restarts with --on-failure replace; max_restarts is 0 then.
  int min_workers = 1;       // --on-failure shrink ends the job with fewer.
  bool detach = false;       // Go into the background once all workers run.
  // The end of a Slurm allocation: launcher/slurm/allocation_watch.h.
  std::optional<std::chrono::milliseconds> stop_before_end;
  std::optional<int> preempt_signal;  // TERM where none was given.
  bool requeue = false;
};

// Addresses and ports of the workers, and their store.
struct NetworkOptions {
  std::string interface;
  std::uint16_t port_low = 0;  // From --port-range or --master-port; 0: any port.
  std::uint16_t port_high = 0;
  std::string master_addr;  // --master-addr: an address, or a name.
  // The numeric addresses of its name, or why there are none: the job looks them up before it
  // plans.
  std::vector<std::string> master_addresses;
  std::string master_addr_error;
  bool no_store = false;  // --no-store: rank 0's framework serves on MASTER_PORT.
};

// torchrun mode: every node has an ivyrun of its own, and that of node 0 is the job's launcher.
struct JoinOptions {
  std::optional<int> node_rank;  // --node-rank, in torchrun mode alone.
  // --master-addr and --master-port: where node 0 listens for the others; an address or a name.
  std::string join_address;
  std::uint16_t join_port = 29'500;
  // --rdzv-id and --join-secret-file: what the nodes' key is made of.
  std::string run_id;
  std::string join_secret_file;
  // torchrun's place to meet; only advice needs it.
  std::string rdzv_endpoint;
  // Flags and values that must be the same on all nodes.
  std::vector<std::pair<std::string, std::string>> join_terms;
};

// The way from ivyrun to the hosts.
struct TransportOptions {
  TransportChoice transport = TransportChoice::kAuto;
  std::uint16_t ssh_port = 0;
  std::vector<std::string> ssh_command;  // --ssh-command, split at blanks; empty: libssh.
  std::vector<std::string> ssh_args;     // --ssh-args, handed to the OpenSSH client.
  std::vector<std::string> srun_args;    // --srun-args, behind ours on srun's command line.
  int fanout = 64;
  // The ways that `auto` may not choose: the policy of this host (policy.h) forbids them.
  bool no_ssh = false, no_agents = false, no_slurm = false;
};

// Messages of ivyrun about itself.
struct DiagnosisOptions {
  bool quiet = false;
  int verbose = 0;
  bool dry_run = false;
  bool dry_run_json = false;  // The plan as an object.
  bool doctor = false;        // A dry run that says what is wrong with the hosts.
  bool doctor_json = false;
  std::string check_module;      // --check-module: a Python module that hosts need.
  std::string healthy_hostfile;  // --healthy-hostfile: where hosts are written that passed.
  bool explain_env = false;      // A dry run that shows the workers' variables instead of the plan.
  std::vector<std::string> notes;  // Flags that were accepted without effect, one sentence each.
};

// All groups of flags; code that needs one group takes that group.
struct Options : HostOptions,
                 DeviceOptions,
                 WorkerOptions,
                 OutputOptions,
                 LifecycleOptions,
                 NetworkOptions,
                 JoinOptions,
                 TransportOptions,
                 DiagnosisOptions {};

// The action for a command line: run a job, or print a text and exit.
struct ParsedCommandLine {
  Options options;
  std::string text_to_print;  // --help, --version: print and exit with exit_code.
  int exit_code = 0;
};

// The text of a --hostfile, as far as a list of hosts may be long.
Result<std::string> read_hostfile(const std::string& path);
using HostfileReader = std::function<Result<std::string>(const std::string& path)>;

// Adds settings from IVY_*, PET_* and config files, each with its origin.
Result<void> add_all_defaults(const Environment& environment, Scanned& scanned);

// Refuses what the policy of the host (policy.h) forbids, and sets what it decides.
Result<void> apply_policy(const Policy& policy, const Scanned& scanned, Options& options);

// arguments: argv without argv[0]. environment: the caller's (IVY_* and PET_* defaults are read
// from it). Reads config files and the policy, and a --hostfile by `read`. InvalidArgument names
// the flag, what is wrong, and the nearest right flag.
Result<ParsedCommandLine> parse_command_line(const std::vector<std::string>& arguments,
                                             const Environment& environment,
                                             const HostfileReader& read = read_hostfile);

}  // namespace ivy
