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
#include "launcher/options/cause_list.h"
#include "launcher/options/drill_rule.h"
#include "launcher/options/fetch_rule.h"
#include "launcher/options/host_filter.h"
#include "launcher/options/hosts.h"
#include "launcher/options/option_types.h"
#include "launcher/options/pattern.h"
#include "launcher/options/pod.h"
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
  // From -H, --hostfile, --fake-hosts or an allocation, in rank order, cut to --nnodes. If empty,
  // main adds this host.
  std::vector<Host> hosts;
  std::string host_source;  // "-H", "hostfile x", "--fake-hosts", "Slurm job 7", or empty.
  // --hosts-from: a shell command whose output lists the hosts. main runs it and sets `hosts`.
  std::string hosts_from;
  std::vector<Host> listed_hosts;  // The first output of that command.
  // --include, --exclude: at most one of them; main applies them once all hosts are known.
  std::vector<HostPick> include, exclude;
  // The Slurm job to which these hosts belong; empty outside Slurm, or if its allocation is not
  // used.
  std::optional<SlurmAllocation> allocation;
  std::string batch_job;  // "PBS job 7": another scheduler's job, to which these hosts belong.
  std::optional<int> num_proc;
  std::optional<int> num_nodes;  // --nnodes N, or MAX of MIN:MAX
  // --nnodes MIN:MAX: this many hosts suffice (launcher/job/hosts/membership.h). Without it all are
  // needed.
  std::optional<int> min_nodes;
  // --spares: this many of the last hosts have no workers until another host is lost
  // (launcher/job/hosts/node_ranks.h). --pick healthiest makes all hosts beyond --nnodes spares.
  int spares = 0;
  PickChoice pick = PickChoice::kFirst;
  // --grow: hosts that come later, or come back, join at a restart. If none is due, the workers are
  // restarted for them at most this often.
  std::optional<std::chrono::milliseconds> grow;
  PerHost per_host;
  MapChoice map_by = MapChoice::kHost;
};

// Accelerators and cores of the workers.
struct DeviceOptions {
  VisibleChoice visible = VisibleChoice::kAuto;
  std::optional<int> gpus_per_proc;     // From --gpus_per_proc; one per worker if not given.
  std::optional<int> cpu_devices;       // --cpu-devices: JAX devices of a worker's CPU.
  bool oversubscribe = false;           // Workers may share requested accelerators.
  std::vector<std::string> device_env;  // --device-env: more variables for a worker's devices.
  BindChoice bind_to = BindChoice::kAuto;
  bool report_bindings = false;
  bool display_map = false;  // --display map: shows the plan like --dry-run, and then runs the job.
};

// The workers' program and variables.
struct WorkerOptions {
  Profile profile = Profile::kTorch;
  App app = App::kNone;
  AppSpec app_spec;  // App::kRoles: --app NAME or --role.
  std::vector<std::string> app_args;
  int app_workers = 1;  // --nproc-per-node for an app that runs one rank on each host.
  std::vector<TfRole> tf_roles;
  bool allow_singletons = false;  // N worlds of one rank are intended.
  ProgramKind program_kind = ProgramKind::kAuto;
  std::vector<std::string> command;  // Program and its arguments, byte for byte.
  std::string python;
  std::string working_directory;  // --wdir; empty means the directory in which ivyrun was started.
  std::vector<std::string> exports;  // -x K or K=V, in order.
  std::vector<std::string> env_files;
  EnvChoice env_choice = EnvChoice::kListed;
  std::vector<std::string> wrap;     // --wrap: words before the program, with placeholders.
  ShowRanks wrap_ranks;              // --wrap-ranks: the ranks to which --wrap applies.
  std::string activate;              // --activate: a virtual environment, or "conda:NAME".
  std::vector<std::string> preload;  // --preload: modules; empty if not given.
  InputChoice input;                 // --stdin
  bool no_python_hook = false;       // Without the hook, Python workers cannot report their stacks.
  std::vector<RequestedLimit> limits;  // --rlimit, at most one for each resource.
  std::string nccl_profiler;           // --nccl-profiler; empty if not given, which means "calls".
};

// --stage-venv: the Python environment of the workers on other hosts.
enum class StageVenv : std::uint8_t {
  kNone,    // Theirs.
  kActive,  // A copy of the active one.
  kUv,      // Every host creates it from uv.lock.
};

// --stage: sends files to hosts without a shared file system.
struct StageOptions {
  bool stage = false;
  // --stage=DIR: empty means the git work tree, or the program's directory.
  std::string stage_directory;
  std::vector<std::string> stage_patterns;  // launcher/stage/stage_patterns.h
  std::string stage_to;  // --stage-to: a directory on the hosts; empty means the user's cache.
  std::uint64_t stage_limit = 2ull << 30;
  StageVenv stage_venv = StageVenv::kNone;  // If given, `stage` is set as well.
  std::string uv_project;                   // kUv: the directory of uv.lock, absolute.
};

// Display and storage of the workers' output.
struct OutputOptions {
  std::string label = "auto";  // --label: auto, none, rank, host, or a template.
  ColorChoice color = ColorChoice::kAuto;
  ShowRanks show_ranks;
  StreamChoice redirects;  // --redirects: these streams go only to files,
  StreamChoice tee;        // --tee: except that these go to the console as well.
  std::string log_dir;     // --log-dir; empty for no such files.
  LogLocation log_to = LogLocation::kHead;
  std::string output;  // --output: a pattern of file names; empty for no such files.
  bool raw = false;
  bool timestamps = false;
  OverflowChoice overflow = OverflowChoice::kBlock;
  SummaryChoice summary = SummaryChoice::kAuto;
  std::string events;         // --events: an absolute path, or "fd:N"; empty if none.
  std::string name;           // --name: the job's name for people.
  std::optional<bool> dedup;  // --dedup: show equal lines only once; if not given, on a terminal.
  std::string metrics_file;   // --metrics-file: an absolute path; empty if none.
  std::optional<Pattern> progress_match;  // Its first group is a step that ranks print.
  std::string
      progress_file;  // --progress-file: a pattern of files on rank 0's host; empty if none.
};

// Files that are copied from the hosts when the job ends.
struct FetchOptions {
  std::vector<FetchRule> fetch;
  std::uint64_t fetch_limit = 10ull << 30;  // Bytes, over all hosts.
  std::chrono::milliseconds fetch_timeout{3'600'000};
};

// The health gate: checks of all hosts before each start (launcher/job/health_gate.h).
struct CheckOptions {
  std::vector<std::string> checks;  // --check: commands, and "unix:PATH"; not "default".
  bool default_checks = false;      // --check default
  std::chrono::milliseconds check_timeout{60'000};
  std::optional<int> expect_gpus;
  bool check_load = false;

  bool wants_gate() const {
    return !checks.empty() || default_checks || expect_gpus.has_value() || check_load;
  }
};

// When the job ends, is abandoned or restarts.
struct LifecycleOptions {
  std::chrono::milliseconds start_timeout{120'000};
  std::optional<std::chrono::milliseconds> timeout;
  // If set, it replaces both grace periods.
  std::optional<std::chrono::milliseconds> shutdown_timeout;
  std::optional<std::chrono::milliseconds> lease;
  std::chrono::seconds stall_timeout{0};  // Time until a stall is reported; 0 means never.
  OnStall on_stall = OnStall::kReport;
  // --exit-timeout: ends the job if some ranks have exited with 0 and the others make no progress
  // for this long; 0 means never.
  std::chrono::seconds exit_timeout{0};
  int max_restarts = 0;  // --max-restarts: number of restarts of a failed group.
  // Causes after which a failed group is restarted; empty: after any of them.
  std::vector<Cause> restart_on;
  std::vector<Cause> never_restart;  // These causes end the job.
  // --condemn-on: after these causes, the host of the first failure is left out.
  std::vector<Cause> condemn_on;
  // --linger: how long processes that ranks leave behind may run after a success.
  std::chrono::milliseconds linger{0};
  OnFailure on_failure = OnFailure::kRestart;
  int max_replacements = 0;  // --max-restarts with --on-failure replace; max_restarts is 0 then.
  int min_workers = 1;       // --on-failure shrink ends the job with fewer workers.
  bool detach = false;       // Continue in the background once all workers are running.
  // The end of a Slurm allocation or of a pod; see launcher/slurm/allocation_watch.h.
  std::optional<std::chrono::milliseconds> stop_before_end;
  std::optional<int> preempt_signal;  // TERM if not given.
  bool requeue = false;
  // Hosts that will be stopped (launcher/job/host_notices.h).
  WatchNotices watch_notices = WatchNotices::kAuto;
  std::chrono::milliseconds notice_time{25'000};
  bool in_pod = false;  // ivyrun is a pod's program: TERM warns of the end of the pod.
};

// Addresses and ports of the workers and of their store.
struct NetworkOptions {
  std::string interface;
  std::uint16_t port_low = 0;  // From --port-range or --master-port; 0 means any port.
  std::uint16_t port_high = 0;
  std::string master_addr;  // --master-addr: an address, or a name.
  // The numeric addresses of that name, or the reason why there are none. The job resolves the name
  // before it plans.
  std::vector<std::string> master_addresses;
  std::string master_addr_error;
  bool no_store = false;  // --no-store: rank 0's framework serves on MASTER_PORT.
};

// torchrun mode: every node has its own ivyrun, and node 0's is the job's launcher.
struct JoinOptions {
  std::optional<int> node_rank;  // --node-rank, only in torchrun mode.
  // --master-addr and --master-port: where node 0 listens for the other nodes; an address or a
  // name.
  std::string join_address;
  std::uint16_t join_port = 29'500;
  // --rdzv-id and --join-secret-file: inputs of the nodes' key.
  std::string run_id;
  std::string join_secret_file;
  // torchrun's rendezvous endpoint; used only for advice.
  std::string rdzv_endpoint;
  // Flags and values that must be the same on all nodes.
  std::vector<std::pair<std::string, std::string>> join_terms;
};

// --container: the workers of each host run in one container.
struct ContainerOptions {
  std::string container;          // The image; empty without a container.
  std::string container_runtime;  // Empty: the first one that a host has.
  std::vector<MountChoice> container_mounts;
  std::vector<std::string> container_args;  // Words for the runtime's run command.
};

// How ivyrun reaches the hosts.
struct TransportOptions {
  TransportChoice transport = TransportChoice::kAuto;
  std::uint16_t ssh_port = 0;
  std::vector<std::string> ssh_command;  // --ssh-command, split at blanks; empty means libssh.
  std::vector<std::string> ssh_args;     // --ssh-args, passed to the OpenSSH client.
  // kExec: the command of --exec or of the named transport, with {host} (exec_command.h).
  std::vector<std::string> exec_command;
  std::vector<std::string> srun_args;  // --srun-args, after ivyrun's own arguments of srun.
  int fanout = 64;
  // Transports that `auto` may not choose, because this host's policy (policy.h) forbids them.
  bool no_ssh = false, no_agents = false, no_slurm = false;
};

// ivyrun's own messages, and runs that only check or explain a job.
struct DiagnosisOptions {
  bool quiet = false;
  int verbose = 0;
  bool dry_run = false;
  bool dry_run_json = false;  // The plan as a JSON object.
  bool doctor = false;        // A dry run that reports problems of the hosts.
  bool doctor_json = false;
  std::string check_module;      // --check-module: a Python module that hosts need.
  std::string healthy_hostfile;  // --healthy-hostfile: file for the hosts that passed.
  std::vector<DrillRule> drill;  // --drill: faults that the job injects into itself.
  bool explain_env = false;      // A dry run that shows the workers' variables instead of the plan.
  std::vector<std::string> notes;  // Advice for the user, such as flags without effect.
};

// All groups of flags; code that needs one group takes that group.
struct Options : HostOptions,
                 DeviceOptions,
                 WorkerOptions,
                 StageOptions,
                 OutputOptions,
                 FetchOptions,
                 CheckOptions,
                 LifecycleOptions,
                 NetworkOptions,
                 JoinOptions,
                 ContainerOptions,
                 TransportOptions,
                 DiagnosisOptions {};

// The action for a command line: run a job, or print a text and exit.
struct ParsedCommandLine {
  Options options;
  std::string text_to_print;  // --help, --version: print and exit with exit_code.
  int exit_code = 0;
};

// Returns the text of a --hostfile, up to the maximum length of a list of hosts.
Result<std::string> read_hostfile(const std::string& path);
using HostfileReader = std::function<Result<std::string>(const std::string& path)>;

// Whether the user has named the hosts, in any way.
bool hosts_are_named(const HostOptions& options);

// Rejects --nnodes MIN:MAX with fewer than MIN hosts. Call when the hosts of --hosts-from are
// known.
Result<void> check_min_hosts(const Options& options, const std::string& nnodes = "--nnodes");
// Cuts the list of hosts to those of --nnodes and --spares, once all hosts are known. With --pick
// healthiest, sets the number of spares instead.
Result<void> cut_to_nodes(Options& options);

// Adds settings from IVY_*, PET_* and config files, each with its origin.
Result<void> add_all_defaults(const Environment& environment, Scanned& scanned);

// Rejects flags that the host's policy (policy.h) forbids, and applies its settings.
Result<void> apply_policy(const Policy& policy, const Scanned& scanned, Options& options);

// arguments: argv without argv[0]. environment: the caller's, from which IVY_* and PET_* defaults
// are read. Reads config files and the policy, and a --hostfile through `read`. pod: makes a pod of
// an Indexed Job a node of torchrun mode. The message of InvalidArgument contains the flag, the
// problem, and the nearest known flag.
Result<ParsedCommandLine> parse_command_line(const std::vector<std::string>& arguments,
                                             const Environment& environment,
                                             const HostfileReader& read = read_hostfile,
                                             const PodFacts& pod = {});

}  // namespace ivy
