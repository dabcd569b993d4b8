// SPDX-License-Identifier: Apache-2.0
// explain_environment() at the end makes the same plan for each host as a start would. It shows all
// variables of the first worker, with a reason for each (kReasons, reason_of()); then, for the
// first and the last worker of each host, only the variables that differ between workers.
#include "launcher/plan/explain_env.h"

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/options/exports.h"
#include "proto/contract/device_vendor.h"
#include "proto/contract/text_columns.h"

namespace ivy {
namespace {

// A longer value (such as PATH) would break every table, so it is truncated.
constexpr std::size_t kMaxValueBytes = 60;

// Returns true for a variable whose value is not shown, since users publish this output when they
// ask for help.
bool is_secret(const std::string& name) {
  return name.find("TOKEN") != std::string::npos || name.find("SECRET") != std::string::npos ||
         name.find("PASSW") != std::string::npos || name.ends_with("_KEY");
}

// Returns true if a proxy's address contains a password: http://user:password@proxy:3128.
bool has_password(const std::string& name, const std::string& value) {
  return (name.ends_with("_proxy") || name.ends_with("_PROXY")) &&
         value.find('@') != std::string::npos;
}

std::string setting_text(const std::string& name, const std::string& value) {
  if (is_secret(name) || has_password(name, value)) return name + "=(hidden)";
  const std::string text = RemoteText(value.substr(0, kMaxValueBytes)).line();
  return name + "=" + text + (value.size() > kMaxValueBytes ? "..." : "");
}

// The reason for the value of a variable that we set; the first matching pattern counts.
struct Reason {
  std::string_view pattern;
  std::string_view why;
};
constexpr Reason kReasons[] = {
    {"RANK", "index in host order"},
    {"ROLE_RANK", "index in host order"},
    {"IVY_RANK", "index in host order"},
    {"KERAS_DISTRIBUTION_PROCESS_ID", "index in host order"},
    {"IVY_LOCAL_RANK", "index on its host"},
    {"LOCAL_RANK", "index on its host; 0 if it sees only its own accelerators"},
    {"GROUP_WORLD_SIZE", "hosts with workers"},
    {"*LOCAL_WORLD_SIZE", "workers on its host"},
    {"*WORLD_SIZE", "workers in total"},
    {"KERAS_DISTRIBUTION_NUM_PROCESSES", "workers in total"},
    {"GROUP_RANK", "index of its host"},
    {"*NODE_RANK", "index of its host"},
    {"IVY_NUM_NODES", "hosts with workers"},
    {"ROLE_NAME", "there is one role"},
    {"MASTER_ADDR", "address at which every host reaches the first one, or --master-addr"},
    {"IVY_MASTER_ADDR", "address at which every host reaches the first one, or --master-addr"},
    {"MASTER_PORT", "reserved on the first host, or --master-port"},
    {"IVY_MASTER_PORT", "reserved on the first host, or --master-port"},
    {"CROSS_RANK", "index of this host among hosts that run this local rank"},
    {"CROSS_SIZE", "hosts that run this local rank"},
    {"LOCAL_SIZE", "workers on its host"},
    {"PJRT_LOCAL_PROCESS_RANK", "index on its host"},
    {"CUPYX_DISTRIBUTED_*", "reserved on the first host"},
    {"TF_CONFIG", "-B tensorflow: a reserved port for each rank, and --tf-roles"},
    {"IVY_MACHINES", "-B lightgbm: a reserved port for each rank"},
    {"IVY_LISTEN_PORT", "-B lightgbm: the port of this rank"},
    {"PADDLE_*", "-B paddle"},
    {"HOROVOD_*", "-B horovod; its rendezvous uses the job's store"},
    {"MLX_HOSTFILE", "-B mlx: a reserved port for each rank"},
    {"MLX_*", "-B mlx"},
    {"NCCL_HOST_IP", "-B mlx: rendezvous of its NCCL backend, on the first host"},
    {"NCCL_PORT", "-B mlx: rendezvous of its NCCL backend, on the first host"},
    {"JAX_COORDINATOR_ADDRESS", "reserved on the first host"},
    {"JAX_COORDINATOR_BIND_ADDRESS", "--app jax-service: rank 0's own service, which is not used"},
    {"JAX_ENABLE_RECOVERABILITY", "--app jax-service, because it was not set"},
    {"KERAS_DISTRIBUTION_JOB_ADDRESSES", "reserved on the first host"},
    {"IVY_INIT_TIMEOUT", "--start-timeout"},
    {"IVY_ALLOW_SINGLETONS", "--allow-singletons"},
    {"IVY_DRILL_HOLD_MS", "--drill hold-gil"},
    {"IVY_ROLE_*", "--role"},
    {"IVY_REJOIN", "restarts of this rank alone"},
    {"SLURM_*", "this job's ranks and hosts, by Slurm's names"},
    {"OMPI_MCA_orte_hnp_uri", "-B jax with --no-python-hook: makes JAX read OMPI_COMM_WORLD_*"},
    {"OMPI_COMM_WORLD_SIZE", "workers in total"},
    {"OMPI_COMM_WORLD_RANK", "index in host order"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "index on its host"},
    {"JAX_ENABLE_PREEMPTION_SERVICE",
     "false, so that the job stops quickly; true if SIGTERM is a warning (--stop-before-end)"},
    {"JAX_PLATFORMS", "--cpu-devices, because it was not set"},
    {"XLA_FLAGS", "the flags already set, and --cpu-devices"},
    {"JAX_LOCAL_DEVICE_IDS", "its accelerators, as indices of the visible ones"},
    {"IVY_DEVICE_ORDINAL", "its accelerators, as indices of the visible ones"},
    {"IVY_DEVICE_*", "its accelerators"},
    {"PWD", "the working directory"},
    {"TORCHELASTIC_RUN_ID", "the job's id"},
    {"IVY_JOB_ID", "the job's id"},
    {"TORCHELASTIC_RESTART_COUNT", "attempts before this one"},
    {"IVY_GENERATION", "attempts before this one"},
    {"TORCHELASTIC_MAX_RESTARTS", "--max-restarts"},
    {"TORCHELASTIC_USE_AGENT_STORE", "True: the store is ivyrun's; False with --no-store"},
    {"IVY_STORE", "address of the store"},
    // A default, only set if no other source has set the variable.
    {"OMP_NUM_THREADS",
     "cores, or the processor quota of the cgroup, divided by the workers of the host"},
    {"CUDA_DEVICE_ORDER", "PCI order, as in nvidia-smi, because it was not set"},
    {"PYTHONUNBUFFERED", "for immediate output, because it was not set"},
    {"GLOO_SOCKET_IFNAME", "interface of the route to the first host, because it was not set"},
    {"TORCH_NCCL_ASYNC_ERROR_HANDLING",
     "a failed collective ends its rank, because it was not set"},
    {"ZE_ENABLE_PCI_ID_DEVICE_ORDER", "numbers by PCI address, because it was not set"},
    {"IVY_OVERSUBSCRIBE", "--oversubscribe, because it was not set"},
    {"USER", "the name of the account, because it was not set"},
    {"LOGNAME", "the name of the account, because it was not set"},
    {"no_proxy", "the first host is reached without a proxy"},
    {"NO_PROXY", "the first host is reached without a proxy"},
    {"IVY_NCCL_PROFILER", "--nccl-profiler"},
    {"IVY_NCCL_SHRINK", "--on-failure shrink, because it was not set"},
    {"NCCL_HOSTID", "the host's name: another host of the job has the same name and boot id"},
    {"NCCL_RAS_ADDR", "a loopback address derived from the job's id, because it was not set"},
    {"NCCL_SOCKET_IFNAME", "interface of the route to the first host, because it was not set"}};

// Variables whose values only the host's supervisor knows (agent/node/workers/worker.cc).
constexpr std::string_view kSetOnHost[] = {"IVY_TOKEN_FILE", "IVY_CONTROL", "IVY_HOST_INDEX",
                                           "TORCHELASTIC_ERROR_FILE"};
// Variables of the Python hook that only the supervisor knows (agent/node/workers/python_hook.cc).
constexpr std::string_view kSetForHook[] = {"IVY_STACK_FILE", "PYTHONPATH"};

bool matches(std::string_view pattern, const std::string& name) {
  if (pattern.starts_with('*')) return name.ends_with(pattern.substr(1));
  return env_pattern_matches(pattern, name);
}

std::string why_set(const std::string& name) {
  const std::string_view reason = reason_for_variable(name);
  return std::string(reason.empty() ? "ivyrun's default, because it was not set" : reason);
}

const EnvEntry* entry_of(const std::string& name) {
  const auto table = env_table();
  const auto entry = std::find_if(table.begin(), table.end(), [&](const EnvEntry& e) {
    return env_pattern_matches(e.pattern, name);
  });
  return entry == table.end() ? nullptr : &*entry;
}

std::string reader_of(const std::string& name) {
  const EnvEntry* entry = entry_of(name);
  return entry == nullptr ? "your program" : std::string(entry->reader);
}

// Returns the reason for the value of a variable that is sent with the plan.
std::string reason_of(const EnvironmentInputs& inputs, const Environment& exports,
                      const EnvVariable& variable) {
  const auto holds = [&](const Environment& environment) {
    const std::string* value = find_variable(environment, variable.name);
    return value != nullptr && *value == variable.value;
  };
  const EnvRule rule = env_rule(variable.name);
  if (rule == EnvRule::kSet) return why_set(variable.name);
  if (holds(exports)) return "-x";
  if (holds(inputs.from_files)) return "--env-file";
  if (rule != EnvRule::kScrub && holds(*inputs.caller)) return "passed on from this shell";
  const std::vector<std::string>& device_env = inputs.options->device_env;
  if (std::find(device_env.begin(), device_env.end(), variable.name) != device_env.end())
    return "--device-env: this worker's accelerators";
  if (is_device_mask(variable.name))
    return "--visible: this worker's, or this host's, accelerators";
  return why_set(variable.name);
}

Environment environment_of_spec(const HostPlan& plan, const WorkerSpec& spec) {
  Environment environment;
  for (const Variable& variable : plan.environment())
    set_variable(environment, variable.name(), variable.value());
  for (const Variable& variable : spec.environment())
    set_variable(environment, variable.name(), variable.value());
  std::sort(environment.begin(), environment.end(),
            [](const EnvVariable& a, const EnvVariable& b) { return a.name < b.name; });
  return environment;
}

// Variables that the host's supervisor adds if MPI is served (agent/node/workers/mpi_identity.h).
// The reasons say where a setting of the user is kept.
struct MpiRow {
  const char* name;
  const char* reader;
  const char* why;
};
constexpr MpiRow kMpiRows[] = {
    {"PMI_RANK=", "MPICH and derivatives (PMI-1)", "index in host order"},
    {"PMI_SIZE=", "MPICH and derivatives (PMI-1)", "workers in total"},
    {"PMI_ID=", "MPICH and derivatives (PMI-1)", "index in host order"},
    {"PMI_PORT=...", "MPICH and derivatives (PMI-1)", "the host's PMI server, on loopback"},
    {"MPI_LOCALRANKID=", "MPI libraries", "index on its host"},
    {"MPI_LOCALNRANKS=", "MPI libraries", "workers on its host"},
    {"MPIR_CVAR_PMI_VERSION=1", "MPICH 5", "so that it does not guess between PMI-1 and PMIx"},
    {"PMIX_RANK=", "Open MPI (PMIx)", "index in host order"},
    {"PMIX_...=...", "Open MPI (PMIx)", "the host's PMIx server, on loopback, and its modules"},
    {"JSM_JSRUN_PORT=1", "Open MPI 4.1", "makes it look for a PMIx server; unless you set it"},
    {"OMPI_MCA_*_backing_directory=...", "Open MPI",
     "for segments that are removed with the job; unless you set it"},
    {"OMPI_MCA_mpi_oversubscribe=1", "Open MPI 4.1",
     "only if ranks outnumber processors; unless you set it"},
    {"I_MPI_THREAD_YIELD=2", "Intel MPI", "only if ranks outnumber processors; unless you set it"},
    {"OMPI_MCA_orte_precondition_transports=...", "Open MPI 4.1 on Omni-Path",
     "a key of the job; unless you set it"},
    {"IVY_MPI=...", "ivyrun's Python hook", "the process that joins the MPI world"},
    {"IVY_MPI_PLACE=...", "ivyrun's Python hook", "which of these belong to this job"}};

// Returns the numbers that are known before the job starts.
std::string mpi_number(std::string_view name, const HostPlan& plan) {
  const WorkerSpec& spec = plan.workers(0);
  if (name == "PMI_SIZE=") return std::to_string(plan.world_size());
  if (name == "MPI_LOCALRANKID=") return std::to_string(spec.local_rank());
  if (name == "MPI_LOCALNRANKS=") return std::to_string(plan.workers_size());
  return std::to_string(spec.rank());
}

void add_mpi_rows(const HostPlan& plan, std::vector<TextRow>& rows) {
  if (!plan.has_mpi()) return;
  for (const MpiRow& row : kMpiRows) {
    const std::string name = row.name;
    rows.push_back({name.ends_with('=') ? name + mpi_number(name, plan) : name, row.reader,
                    "MPI: " + std::string(row.why)});
  }
  if (plan.mpi().pmi())
    rows.push_back({"PMI_FD=...", "MPICH and derivatives (PMI-1)",
                    "MPI: the worker's connection, opened before the program starts"});
}

// Lists the variables that app-run removes from and adds to the program; a server's variables are
// in app_table.cc.
void add_app_rows(const WorkerSpec& spec, std::vector<TextRow>& rows) {
  if (!spec.has_app()) return;
  const auto is_of_ranks = [](const TextRow& row) {
    const std::string name = row.front().substr(0, row.front().find('='));
    return env_rule(name) == EnvRule::kSet && name != "IVY_JOB_ID" && name != "IVY_HOST_INDEX";
  };
  if (!spec.app().every_rank_is_client()) std::erase_if(rows, is_of_ranks);
  const std::string why = spec.app().name() == "roles" ? "--role" : "--app " + spec.app().name();
  for (const Variable& variable : spec.app().client_environment())
    rows.push_back(
        {setting_text(variable.name(), variable.value()), reader_of(variable.name()), why});
}

std::string first_worker(const EnvironmentInputs& inputs, const Environment& exports,
                         const HostPlan& plan, const std::string& host) {
  const WorkerSpec& spec = plan.workers(0);
  std::vector<TextRow> rows = {{"variable", "read by", "why"}};
  for (const EnvVariable& variable : environment_of_spec(plan, spec))
    rows.push_back({setting_text(variable.name, variable.value), reader_of(variable.name),
                    reason_of(inputs, exports, variable)});
  const auto add_host_row = [&rows](const std::string& name, const std::string& why) {
    rows.push_back({name + "=...", reader_of(name), why});
  };
  for (const std::string_view name : kSetOnHost) add_host_row(std::string(name), "set on the host");
  if (!inputs.options->no_python_hook)
    for (const std::string_view name : kSetForHook)
      add_host_row(std::string(name), "ivyrun's Python hook; set on the host");
  const Environment sent = environment_of_spec(plan, spec);
  const auto is_set = [&](const char* name) {
    return find_variable(sent, name) != nullptr || find_variable(*inputs.caller, name) != nullptr;
  };
  const bool sets_debug = is_set("NCCL_DEBUG") || is_set("NCCL_DEBUG_FILE");
  for (const char* name :
       {"TORCH_FR_BUFFER_SIZE", "NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_PROFILER_PLUGIN"}) {
    const bool is_off = inputs.options->nccl_profiler == "off";
    if (is_off && std::string_view(name) == "NCCL_PROFILER_PLUGIN") continue;
    if (is_set(name) || (sets_debug && std::string_view(name).starts_with("NCCL_DEBUG"))) continue;
    add_host_row(name, "for ivyctl stack and why; set on the host, because it was not set");
  }
  add_mpi_rows(plan, rows);
  add_app_rows(spec, rows);
  return "rank " + std::to_string(spec.rank()) + " on " + host + ":\n" + text_columns(rows);
}

void add_differences(const HostPlan& plan, const std::string& host, std::string& out) {
  for (const int index : {0, plan.workers_size() - 1}) {
    const WorkerSpec& spec = plan.workers(index);
    out += "  rank " + std::to_string(spec.rank()) + " on " + host + ":";
    for (const Variable& variable : spec.environment())
      out += " " + setting_text(variable.name(), variable.value());
    out += "\n";
    if (plan.workers_size() == 1) break;
  }
}

// Lists the caller's variables that are removed from every worker's environment.
std::string removed_line(const EnvironmentInputs& inputs) {
  std::string names;
  for (const EnvVariable& variable : *inputs.caller)
    if (env_rule(variable.name) == EnvRule::kScrub)
      names += (names.empty() ? "" : ", ") + variable.name + " (" + reader_of(variable.name) + ")";
  return names.empty() ? "" : "removed from every worker: " + names + "\n";
}

}  // namespace

std::string_view reason_for_variable(const std::string& name) {
  const auto* reason =
      std::find_if(std::begin(kReasons), std::end(kReasons),
                   [&](const Reason& candidate) { return matches(candidate.pattern, name); });
  if (reason != std::end(kReasons)) return reason->why;
  const auto is_listed = [&name](std::span<const std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (is_listed(kSetOnHost) || is_listed(kSetForHook)) return "set on the host";
  for (const MpiRow& row : kMpiRows)
    if (std::string_view(row.name).starts_with(name + "=")) return row.why;
  return {};
}

Result<std::string> explain_environment(const EnvironmentInputs& inputs) {
  const std::vector<PlannedHost>& hosts = inputs.plan->hosts;
  const Environment exports = IVY_TRY(parse_exports(inputs.options->exports, *inputs.caller));
  std::string out;
  std::string differences;
  for (const PlannedHost& host : hosts) {
    const HostPlan plan = IVY_TRY(make_host_plan(inputs, host));
    if (out.empty()) out = first_worker(inputs, exports, plan, host.name);
    add_differences(plan, host.name, differences);
  }
  const bool is_present = hosts.front().transport == Transport::kLocal;
  out += is_present ? "and everything else that this shell exports\n"
                    : "and everything else that a login there sets\n";
  out += removed_line(inputs);
  const std::string not_passed = not_passed_line(inputs);
  if (!not_passed.empty()) out += not_passed + "\n";
  return out + "variables that differ between ranks:\n" + differences;
}

}  // namespace ivy
