// SPDX-License-Identifier: Apache-2.0
// The variables of a worker come from these sources; later ones override earlier ones:
//
//   the supervisor's own environment, less HostPlan.unset
//   the caller's variables, on other hosts       rule kAllow of proto/contract/env.h
//   defaults that the user may override          OMP_NUM_THREADS, interface names...
//   --env-file, then -x
//   the accelerators of its host, or its own     CUDA_VISIBLE_DEVICES...
//   the identity of the worker                   RANK, MASTER_ADDR... (rule kSet)
#include "launcher/plan/worker_environment.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string_view>

#include "launcher/options/exports.h"
#include "launcher/plan/app_plan.h"
#include "launcher/plan/device_and_slurm_variables.h"
#include "launcher/plan/framework_variables.h"
#include "launcher/plan/jax_variables.h"
#include "launcher/plan/plan_context.h"
#include "launcher/report/placeholders.h"
#include "launcher/slurm/step.h"
#include "proto/contract/device_vendor.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

const HostAnswer& answer_of(const EnvironmentInputs& inputs, const PlannedHost& host) {
  return (*inputs.answers)[host.host_index];
}

bool is_fake(const EnvironmentInputs& inputs, const PlannedHost& host) {
  const std::vector<Host>& hosts = inputs.options->hosts;
  return host.host_index < hosts.size() && hosts[host.host_index].fake.has_value();
}

bool is_on_this_host(const PlannedHost& host) { return host.transport == Transport::kLocal; }

std::string address_and_port(const JobPlan& plan, std::uint16_t port) {
  return with_port(plan.master_address, port);
}

// Returns the number of workers that share this machine's cores, including those of all simulated
// hosts on it.
std::size_t workers_on_machine(const EnvironmentInputs& inputs, const PlannedHost& host) {
  if (!is_fake(inputs, host)) return host.workers.size();
  return static_cast<std::size_t>(inputs.plan->world_size);
}

// Returns the number of threads for a worker, limited by the processor quota of the host's cgroups,
// since threads beyond it are throttled.
std::size_t threads_within_quota(const EnvironmentInputs& inputs, const PlannedHost& host,
                                 std::size_t threads) {
  const double quota = answer_of(inputs, host).facts.processor_quota();
  if (quota > 0)
    threads = std::min(threads, static_cast<std::size_t>(quota) / workers_on_machine(inputs, host));
  return std::max<std::size_t>(1, threads);
}

// Returns the interface through which this host reaches rank 0; empty if unknown. Host 0 reaches
// itself through its loopback, which is of no use to its peers, so for host 0 it returns the
// interface that has the address.
std::string interface_to_master(const EnvironmentInputs& inputs, const PlannedHost& host) {
  const auto index = static_cast<std::size_t>(host.node_rank);
  const std::string route = index < inputs.interfaces.size() ? inputs.interfaces[index] : "";
  if (!route.empty() && route != "lo") return route;
  for (const Address& address : answer_of(inputs, host).facts.addresses())
    if (address.address() == inputs.plan->master_address && !address.loopback())
      return address.interface();
  return "";
}

// Sets a default unless the caller has a value, which is passed on separately. An empty value
// counts as none, since OpenMP runtimes complain about it.
void set_default(const EnvironmentInputs& inputs, Environment& out, const std::string& name,
                 const std::string& value) {
  const bool travels = inputs.options->env_choice != EnvChoice::kNone;
  const std::string* callers = find_variable(*inputs.caller, name);
  if (value.empty() || (travels && callers != nullptr && !callers->empty())) return;
  set_variable(out, name, value);
}

// The address of NCCL's health service (2.24), whose default is one port for all jobs of a host.
// Each job uses that port on a separate loopback address derived from its id, where no other
// program listens and which only this host can reach.
std::string ras_address(const std::string& job_id) {
  constexpr int kPort = 28028;
  const auto part = [&job_id](std::size_t at) {
    unsigned value = 0;
    for (const char digit : std::string_view(job_id).substr(std::min(at, job_id.size()), 2))
      value =
          value * 16 + static_cast<unsigned>(digit > '9' ? (digit | 32) - 'a' + 10 : digit - '0');
    // Leaves out 127.0, which other programs use, and the first and last number of a network.
    return std::to_string(1 + value % 254);
  };
  return "127." + part(0) + "." + part(2) + "." + part(4) + ":" + std::to_string(kPort);
}

// Under srun the supervisor inherits the caller's environment, except variables hidden from srun.
// On a node that has joined it inherits the environment of that node's ivyrun.
bool has_callers_environment(const PlannedHost& host) {
  return host.transport == Transport::kSrun || host.transport == Transport::kJoined;
}

// Returns true if the workers inherit the caller's variables. In a container they inherit those of
// the image.
bool inherits_callers(const EnvironmentInputs& inputs, const PlannedHost& host) {
  return inputs.options->container.empty() &&
         (is_on_this_host(host) || has_callers_environment(host));
}

// NCCL uses this to decide whether two ranks are on one machine.
std::string machine_of(const HostFacts& facts) { return facts.boot_id() + " " + facts.host_name(); }

void add_defaults(const EnvironmentInputs& inputs, const PlannedHost& host, Environment& out) {
  const HostFacts& facts = answer_of(inputs, host).facts;
  set_default(inputs, out, "PYTHONUNBUFFERED", "1");
  set_default(inputs, out, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  set_default(inputs, out, "NCCL_RAS_ADDR", ras_address(inputs.plan->job_id));
  if (inputs.options->oversubscribe) set_default(inputs, out, "IVY_OVERSUBSCRIBE", "1");
  if (inputs.options->on_failure == OnFailure::kShrink)
    set_default(inputs, out, "IVY_NCCL_SHRINK", "1");
  for (const EnvVariable& variable : jax_defaults(*inputs.options))
    set_default(inputs, out, variable.name, variable.value);
  // In a container a uid may have no name, which Python's getpass, and thereby torch's compiler,
  // needs.
  if (is_on_this_host(host) || has_callers_environment(host) || !inputs.options->container.empty())
    for (const char* name : {"USER", "LOGNAME"}) set_default(inputs, out, name, facts.user());
  const std::size_t threads = facts.cores() / workers_on_machine(inputs, host);
  set_default(inputs, out, "OMP_NUM_THREADS",
              std::to_string(threads_within_quota(inputs, host, threads)));
  if (inputs.plan->hosts.size() < 2 || is_fake(inputs, host)) return;
  const std::string interface = interface_to_master(inputs, host);
  set_default(inputs, out, "GLOO_SOCKET_IFNAME", interface);
  set_default(inputs, out, "NCCL_SOCKET_IFNAME", interface);
  if (inputs.shared_machines.contains(machine_of(facts)))
    set_default(inputs, out, "NCCL_HOSTID", host.name);
}

bool is_proxy(std::string_view name) {
  return name.ends_with("_proxy") || name.ends_with("_PROXY");
}

bool is_no_proxy(std::string_view name) { return name == "no_proxy" || name == "NO_PROXY"; }

// Returns true for a proxy of the network rather than on this host, and without a password, which
// is not sent.
bool is_proxy_for_others(std::string_view value) {
  if (const std::size_t scheme = value.find("://"); scheme != std::string_view::npos)
    value.remove_prefix(scheme + 3);
  return value.find('@') == std::string_view::npos && !value.starts_with("localhost") &&
         !value.starts_with("127.") && !value.starts_with("[::1]");
}

// Returns true if the variable is allowed by name, and by value if that matters.
bool may_pass_on(const EnvVariable& variable) {
  if (!is_env_name(variable.name) || env_rule(variable.name) != EnvRule::kAllow) return false;
  return !is_proxy(variable.name) || is_no_proxy(variable.name) ||
         is_proxy_for_others(variable.value);
}

// Variables that every login has, or that describe only this terminal; other hosts do not need
// them.
constexpr std::string_view kLoginNames =
    "HOME USER LOGNAME SHELL PWD OLDPWD SHLVL _ TERM MAIL HOSTNAME HOST HOSTTYPE OSTYPE "
    "MACHTYPE LINES COLUMNS COLORTERM LS_COLORS LESS* PAGER EDITOR VISUAL HIST* PS1 PS2 PS4 "
    "PROMPT* MANPATH INFOPATH DISPLAY WAYLAND_DISPLAY XAUTHORITY XDG_* DBUS_* SSH_* GPG_* "
    "SUDO_* TMUX* STY WINDOW* TERM_* VTE_VERSION VSCODE_* GIT_* DESKTOP_SESSION "
    "SESSION_MANAGER SLURM_* PBS_* TMPDIR MEMORY_PRESSURE_* PET_* DEBUGINFOD_* "
    "CREDENTIALS_DIRECTORY";

bool is_login_name(std::string_view name) {
  if (selects_devices(name)) return true;
  static const std::vector<std::string_view> patterns = words_of(kLoginNames);
  return std::any_of(patterns.begin(), patterns.end(), [name](std::string_view pattern) {
    return env_pattern_matches(pattern, name);
  });
}

// Returns true for a function that bash has exported: "BASH_FUNC_module%%".
bool is_shell_function(std::string_view name) {
  return name.starts_with("BASH_FUNC_") && name.ends_with("%%");
}

// Returns true if --env sends the variable to other hosts.
bool is_passed_on(const EnvironmentInputs& inputs, const EnvVariable& variable) {
  switch (inputs.options->env_choice) {
    case EnvChoice::kListed:
      return may_pass_on(variable);
    case EnvChoice::kAll:
      return may_pass_on(variable) || is_shell_function(variable.name) ||
             (is_env_name(variable.name) && env_rule(variable.name) == EnvRule::kInherit &&
              !is_login_name(variable.name));
    case EnvChoice::kNone:
      break;
  }
  return false;
}

// Excepts the first host from proxies, because gRPC, which JAX uses, would contact rank 0 through
// them, too.
void exclude_master_from_proxies(const std::string& address, Environment& out) {
  const bool has_proxy = std::any_of(out.begin(), out.end(), [](const EnvVariable& variable) {
    return is_proxy(variable.name) && !is_no_proxy(variable.name);
  });
  if (!has_proxy) return;
  // Libraries read either the lower-case or the upper-case variable first, so both must contain
  // what the user has set in either.
  const auto user_value = [&](const char* name) {
    const std::string* const value = find_variable(out, name);
    return value == nullptr ? std::string() : *value;
  };
  const std::string small = user_value("no_proxy");
  const std::string large = user_value("NO_PROXY");
  const auto with_address = [&](const std::string& own, const std::string& other) {
    const std::string& known = own.empty() ? other : own;
    return known.empty() || known == "*" ? known + (known.empty() ? address : "")
                                         : known + "," + address;
  };
  set_variable(out, "no_proxy", with_address(small, large));
  set_variable(out, "NO_PROXY", with_address(large, small));
}

// Variables that name directories of this machine, of which an image has its own.
constexpr std::string_view kDirectoryNames =
    "PATH LD_LIBRARY_PATH LD_PRELOAD PYTHONPATH PYTHONHOME VIRTUAL_ENV* CONDA* CUDA_HOME CUDA_PATH";

bool names_directories(std::string_view name) {
  static const std::vector<std::string_view> patterns = words_of(kDirectoryNames);
  return std::any_of(patterns.begin(), patterns.end(), [name](std::string_view pattern) {
    return env_pattern_matches(pattern, name);
  });
}

void add_passed_on(const EnvironmentInputs& inputs, const PlannedHost& host, Environment& out) {
  const bool has_callers = inherits_callers(inputs, host);
  for (const EnvVariable& variable : *inputs.caller) {
    if (!inputs.options->container.empty() && names_directories(variable.name)) continue;
    const EnvRule rule = env_rule(variable.name);
    if (has_callers && is_hidden_from_srun(variable.name) && rule != EnvRule::kScrub &&
        rule != EnvRule::kSet && inputs.options->env_choice != EnvChoice::kNone)
      set_variable(out, variable.name, variable.value);
    const bool is_of_the_job = inputs.options->allocation && is_of_slurm_job(variable.name);
    if (is_of_the_job || is_passed_on(inputs, variable))
      set_variable(out, variable.name, variable.value);
  }
  if (!has_callers) exclude_master_from_proxies(inputs.plan->master_address, out);
}

// Variables about the world that frameworks and libivycomm read, the same for all workers of this
// host.
Environment world_variables(const EnvironmentInputs& inputs, const PlannedHost& host) {
  const JobPlan& plan = *inputs.plan;
  const std::string world = std::to_string(plan.world_size);
  const std::string local_world = std::to_string(host.workers.size());
  const std::string node = std::to_string(host.node_rank);
  const std::string nodes = std::to_string(plan.hosts.size());
  const std::string coordinator = address_and_port(plan, plan.coordinator_port);
  const std::string port = std::to_string(plan.master_port);
  return {
      {"WORLD_SIZE", world},
      {"LOCAL_WORLD_SIZE", local_world},
      {"GROUP_RANK", node},
      {"NODE_RANK", node},
      {"GROUP_WORLD_SIZE", nodes},
      {"ROLE_NAME", "default"},
      {"ROLE_WORLD_SIZE", world},
      {"MASTER_ADDR", plan.master_address},
      {"MASTER_PORT", port},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(inputs.options->on_failure == OnFailure::kReplace
                                                       ? inputs.options->max_replacements
                                                       : inputs.options->max_restarts)},
      {"TORCHELASTIC_RUN_ID", plan.job_id},
      // "True" makes every rank a client of our store; with "False" rank 0 serves the reserved
      // port.
      {"TORCHELASTIC_USE_AGENT_STORE", plan.store_port != 0 ? "True" : "False"},
      {"IVY_WORLD_SIZE", world},
      {"IVY_LOCAL_WORLD_SIZE", local_world},
      {"IVY_NODE_RANK", node},
      {"IVY_NUM_NODES", nodes},
      {"IVY_JOB_ID", plan.job_id},
      {"IVY_MASTER_ADDR", plan.master_address},
      {"IVY_MASTER_PORT", port},
      // JAX and Keras use the same port, because no script opens both.
      {"JAX_COORDINATOR_ADDRESS", coordinator},
      {"KERAS_DISTRIBUTION_JOB_ADDRESSES", coordinator},
      {"KERAS_DISTRIBUTION_NUM_PROCESSES", world},
  };
}

// Adds the variables that all workers of this host share.
void add_identity(const EnvironmentInputs& inputs, const PlannedHost& host, Environment& out) {
  const JobPlan& plan = *inputs.plan;
  set_variables(out, world_variables(inputs, host));
  set_variables(out, generation_variables(inputs.generation));
  set_variables(out, framework_variables(inputs, host));
  set_variables(out, jax_service_variables(*inputs.options));
  if (!inputs.options->no_python_hook) {
    const auto limit = std::chrono::ceil<std::chrono::seconds>(inputs.options->start_timeout);
    set_variable(out, "IVY_INIT_TIMEOUT", std::to_string(limit.count()));
  }
  for (const DrillRule& rule : inputs.options->drill)
    if (rule.has(Fault::kHoldGil))
      set_variable(out, "IVY_DRILL_HOLD_MS", std::to_string(rule.lasts.count()));
  if (inputs.options->allow_singletons) set_variable(out, "IVY_ALLOW_SINGLETONS", "1");
  if (const std::string& what = inputs.options->nccl_profiler; !what.empty())
    set_variable(out, "IVY_NCCL_PROFILER", what);
  if (inputs.options->allocation) set_variables(out, slurm_host_variables(plan, host));
  if (plan.store_port == 0) return;
  set_variable(out, "IVY_STORE", address_and_port(plan, plan.store_port));
}

// One host of the plan, with the values of -x.
struct HostInputs {
  const EnvironmentInputs& inputs;
  const PlannedHost& host;
  const Environment& exports;
};

// Returns true if the user has a value for this variable in one of the sources that we pass on.
bool is_given(const HostInputs& to, const std::string& name) {
  return find_variable(*to.inputs.caller, name) != nullptr ||
         find_variable(to.inputs.from_files, name) != nullptr ||
         find_variable(to.exports, name) != nullptr;
}

// Returns true if --env-file selects accelerators, so that ivyrun does not.
bool chooses_devices(const Environment& from_files) {
  return std::any_of(from_files.begin(), from_files.end(),
                     [](const EnvVariable& variable) { return is_device_mask(variable.name); });
}

// Applied after -x and --env-file, so that their XLA flags are kept.
void add_cpu_devices(const HostInputs& to, Environment& out) {
  const std::optional<int> count = to.inputs.options->cpu_devices;
  if (!count) return;
  const std::string* user_flags = find_variable(out, "XLA_FLAGS");
  if (user_flags == nullptr) user_flags = find_variable(*to.inputs.caller, "XLA_FLAGS");
  set_variable(out, "XLA_FLAGS", xla_flags(user_flags == nullptr ? "" : *user_flags, *count));
}

void add_host_devices(const HostInputs& to, Environment& out) {
  if (chooses_devices(to.inputs.from_files)) return;
  for (const EnvVariable& variable :
       host_device_variables(to.host, answer_of(to.inputs, to.host).facts))
    // A mask from -x already restricted the devices of the host, so the worker gets its part of
    // those.
    if (is_device_mask(variable.name) || !is_given(to, variable.name))
      set_variable(out, variable.name, variable.value);
}

void add_worker_devices(const HostInputs& to, const PlannedWorker& worker, Environment& out) {
  if (!worker.cores.empty() && !is_given(to, "OMP_NUM_THREADS")) {
    const std::size_t threads = worker.cores.size() / static_cast<std::size_t>(worker.sharers);
    set_variable(out, "OMP_NUM_THREADS",
                 std::to_string(threads_within_quota(to.inputs, to.host, threads)));
  }
  if (chooses_devices(to.inputs.from_files)) return;
  const HostFacts& facts = answer_of(to.inputs, to.host).facts;
  const DeviceVendor& vendor = device_vendor(facts.accelerator_source());
  const std::string variable(vendor.order_variable);
  const std::string* order = find_variable(to.exports, variable);
  if (order == nullptr) order = find_variable(*to.inputs.caller, variable);
  const bool by_uuid = order != nullptr && *order != vendor.order;
  set_variables(out, worker_device_variables(*to.inputs.options, to.host, worker, facts, by_uuid));
}

void add_worker(const PlannedWorker& worker, Environment& out) {
  const std::string rank = std::to_string(worker.rank);
  const std::string local_rank = std::to_string(worker.local_rank);
  for (const char* name : {"RANK", "ROLE_RANK", "IVY_RANK", "KERAS_DISTRIBUTION_PROCESS_ID"})
    set_variable(out, name, rank);
  for (const char* name : {"LOCAL_RANK", "IVY_LOCAL_RANK"}) set_variable(out, name, local_rank);
}

template <class Repeated>
void copy_variables(const Environment& from, Repeated* to) {
  for (const EnvVariable& variable : from) {
    Variable* copy = to->Add();
    copy->set_name(variable.name);
    copy->set_value(variable.value);
  }
}

// Variables that workers keep with --env none: location, locale and terminal, and the scheduler's
// variables of the job.
constexpr std::string_view kBareNames =
    "HOME USER LOGNAME SHELL PATH PWD LANG LANGUAGE LC_* TZ TERM TMPDIR SLURM_*";

// --stage-venv: the variables that the environment's `activate` script sets.
void activate(const HostAnswer& answer, Environment& out) {
  if (!answer.environment) return;
  const bool is_conda = answer.environment->is_conda;
  set_variable(out, is_conda ? "CONDA_PREFIX" : "VIRTUAL_ENV", answer.environment->directory);
  unset_variable(out, is_conda ? "VIRTUAL_ENV" : "CONDA_PREFIX");
  unset_variable(out, "PYTHONHOME");
  set_variable(out, "PATH", answer.facts.search_path());
}

// Editable installs of an environment in the staged directory are imported from there. They come
// after the user's directories, as they do in the environment.
void add_imports(const HostAnswer& answer, Environment& out) {
  if (!answer.environment) return;
  for (const std::string& directory : answer.environment->imports) {
    const std::string* path = find_variable(out, "PYTHONPATH");
    const bool is_empty = path == nullptr || path->empty();
    set_variable(out, "PYTHONPATH", is_empty ? directory : *path + ":" + directory);
  }
}

void add_unset(const EnvironmentInputs& inputs, const PlannedHost& host, HostPlan& plan) {
  const bool has_callers = inherits_callers(inputs, host);
  if (has_callers && inputs.options->env_choice == EnvChoice::kNone) {
    const std::vector<std::string_view> kept = words_of(kBareNames);
    for (const EnvVariable& variable : *inputs.caller)
      if (std::none_of(kept.begin(), kept.end(), [&](std::string_view pattern) {
            return env_pattern_matches(pattern, variable.name);
          }))
        plan.add_unset(variable.name);
  }
  if (const HostAnswer& answer = answer_of(inputs, host); answer.environment) {
    plan.add_unset(answer.environment->is_conda ? "VIRTUAL_ENV" : "CONDA_PREFIX");
    plan.add_unset("PYTHONHOME");
  }
  plan.add_unset("OLDPWD");
  // The SSH session that carries us to another host does not belong to the workers; above all they
  // must not sign with the user's keys if ssh forwards the user's agent.
  if (has_callers) return;
  for (const char* name : {"SSH_AUTH_SOCK", "SSH_CLIENT", "SSH_CONNECTION"}) plan.add_unset(name);
}

// A relative path is below the directory in which ivyrun was started, as for ivyrun's own files.
std::string node_log_directory(const EnvironmentInputs& inputs) {
  const Options& options = *inputs.options;
  if (options.log_to == LogLocation::kHead || options.log_dir.empty()) return "";
  if (options.log_dir.starts_with('/')) return options.log_dir;
  return inputs.started_in + "/" + options.log_dir;
}

OnFailureMode mode_of(OnFailure choice) {
  switch (choice) {
    case OnFailure::kShrink:
      return FAILURE_ENDS_ONE;
    case OnFailure::kReplace:
      return FAILURE_IS_REPLACED;
    case OnFailure::kRestart:
      break;
  }
  return FAILURE_ENDS_ALL;
}

void add_mpi(const JobPlan& job, HostPlan& plan) {
  if (!job.mpi.served) return;
  MpiPlan& mpi = *plan.mutable_mpi();
  mpi.set_pmi(job.mpi.pmi);
  mpi.set_pmix(job.mpi.pmix);
  mpi.set_required(job.mpi.required);
  if (job.store_port != 0) mpi.set_store(address_and_port(job, job.store_port));
}

void add_jax_service(const EnvironmentInputs& inputs, const PlannedHost& host, HostPlan& plan) {
  if (inputs.options->app != App::kJaxService || host.node_rank != 0) return;
  JaxServicePlan& service = *plan.mutable_jax_service();
  service.set_interpreter(answer_of(inputs, host).facts.interpreter());
  service.set_address(address_and_port(*inputs.plan, inputs.plan->coordinator_port));
}

void add_wrap(const HostInputs& to, const PlannedWorker& worker, WorkerSpec& spec) {
  const Options& options = *to.inputs.options;
  if (options.wrap.empty() || !options.wrap_ranks.includes(worker.rank, worker.local_rank)) return;
  PlaceholderValues values;
  values.rank = worker.rank;
  values.local_rank = worker.local_rank;
  values.host_index = to.host.node_rank;
  values.host = to.host.name;
  values.job_id = to.inputs.plan->job_id;
  values.generation = to.inputs.generation;
  for (const std::string& word : options.wrap) spec.add_wrap(filled_template(word, values));
}

void add_spec(const HostInputs& to, const PlannedWorker& worker, WorkerSpec& spec) {
  spec.set_rank(static_cast<std::uint32_t>(worker.rank));
  spec.set_local_rank(static_cast<std::uint32_t>(worker.local_rank));
  spec.set_standard_input(to.inputs.options->input.gives(worker.rank));
  add_wrap(to, worker, spec);
  spec.set_cores(core_list_text(worker.cores));
  if (worker.memory_node) spec.set_memory_node(static_cast<std::uint32_t>(*worker.memory_node));
  Environment own;
  if (to.inputs.options->allocation) set_variables(own, slurm_rank_variables(worker));
  add_worker(worker, own);
  set_variables(own, framework_rank_variables(to.inputs, to.host, worker));
  if (is_jax_by_variables(*to.inputs.options))
    set_variables(own, jax_rank_variables(*to.inputs.plan, worker));
  add_worker_devices(to, worker, own);
  copy_variables(own, spec.mutable_environment());
  add_app_plan(to.inputs, to.host, worker, spec);
}

// The longest string that Linux passes to a program (MAX_ARG_STRLEN), including the final NUL.
constexpr std::size_t kMaxVariableBytes = 128u << 10;

template <class Repeated>
Result<void> check_lengths(const Repeated& variables) {
  for (const Variable& variable : variables) {
    const std::size_t bytes = variable.name().size() + variable.value().size() + 2;
    if (bytes <= kMaxVariableBytes) continue;
    const bool lists_ranks = variable.name() == "TF_CONFIG" || variable.name() == "IVY_MACHINES";
    return Error{Code::kInvalidArgument,
                 "the variable " + variable.name() + " takes " + std::to_string(bytes) +
                     " bytes, and Linux passes at most " + std::to_string(kMaxVariableBytes) +
                     " to a program",
                 lists_ranks ? "it lists every rank: start fewer ranks, or use another -B"
                             : "shorten it, or let the program read its value from a file"};
  }
  return {};
}

}  // namespace

std::set<std::string> shared_machines(const JobPlan& plan, const std::vector<HostAnswer>& answers) {
  std::set<std::string> known;
  std::set<std::string> shared;
  for (const PlannedHost& host : plan.hosts) {
    const std::string machine = machine_of(answers[host.host_index].facts);
    if (!known.insert(machine).second) shared.insert(machine);
  }
  return shared;
}

Result<HostPlan> make_host_plan(const EnvironmentInputs& inputs, const PlannedHost& host) {
  const Options& options = *inputs.options;
  const HostFacts& facts = answer_of(inputs, host).facts;
  const Environment exports = IVY_TRY(parse_exports(options.exports, *inputs.caller));
  Environment environment;
  if (!is_on_this_host(host) || !options.container.empty())
    add_passed_on(inputs, host, environment);
  activate(answer_of(inputs, host), environment);
  // With --stage, the host runs in its own copy.
  const std::string& directory =
      facts.working_directory().empty() ? options.working_directory : facts.working_directory();
  set_variable(environment, "PWD", directory);
  add_defaults(inputs, host, environment);
  set_variables(environment, inputs.from_files);
  set_variables(environment, exports);
  add_imports(answer_of(inputs, host), environment);
  const HostInputs to{inputs, host, exports};
  add_host_devices(to, environment);
  add_cpu_devices(to, environment);
  add_identity(inputs, host, environment);

  HostPlan plan;
  plan.set_generation(inputs.generation);
  for (const std::string& argument : worker_arguments(options, facts)) plan.add_arguments(argument);
  plan.set_working_directory(directory);
  plan.set_log_directory(node_log_directory(inputs));
  plan.set_world_size(static_cast<std::uint32_t>(inputs.plan->world_size));
  for (const PlannedHost& other : inputs.plan->hosts) {
    HostShare& share = *plan.add_hosts();
    share.set_name(other.name);
    share.set_ranks(static_cast<std::uint32_t>(other.workers.size()));
  }
  plan.set_stall_seconds(static_cast<std::uint32_t>(options.stall_timeout.count()));
  plan.set_linger_ms(static_cast<std::uint32_t>(
      std::min<std::int64_t>(options.linger.count(), std::numeric_limits<std::uint32_t>::max())));
  add_mpi(*inputs.plan, plan);
  add_jax_service(inputs, host, plan);
  add_framework_files(inputs, plan);
  plan.set_on_failure(mode_of(options.on_failure));
  plan.set_python_hook(!options.no_python_hook);
  if (inputs.plan->preloads)
    for (const std::string& module : options.preload) plan.mutable_preload()->add_modules(module);
  if (inputs.limits) *plan.mutable_limits() = *inputs.limits;
  copy_variables(environment, plan.mutable_environment());
  add_unset(inputs, host, plan);
  IVY_CHECK(check_lengths(plan.environment()));
  for (const PlannedWorker& worker : host.workers) {
    add_spec(to, worker, *plan.add_workers());
    IVY_CHECK(check_lengths(plan.workers(plan.workers_size() - 1).environment()));
  }
  return plan;
}

Environment generation_variables(std::uint32_t generation) {
  const std::string number = std::to_string(generation);
  return {{"TORCHELASTIC_RESTART_COUNT", number}, {"IVY_GENERATION", number}};
}

std::string pinned_threads_line(const EnvironmentInputs& inputs) {
  const auto shares_cores = [](const PlannedHost& host) {
    return host.workers.size() > 1 && host.workers.front().cores.empty();
  };
  const std::vector<PlannedHost>& hosts = inputs.plan->hosts;
  const auto shared = std::find_if(hosts.begin(), hosts.end(), shares_cores);
  const Result<Environment> exports = parse_exports(inputs.options->exports, *inputs.caller);
  if (shared == hosts.end() || !exports.ok()) return "";
  for (const char* name : {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"}) {
    const std::string* value = find_variable(*exports, name);
    if (value == nullptr) value = find_variable(inputs.from_files, name);
    if (value == nullptr) value = find_variable(*inputs.caller, name);
    if (value == nullptr || value->empty() || lower_case(*value) == "false") continue;
    return std::string(name) + " is set, and " + std::to_string(shared->workers.size()) +
           " ranks share the cores of " + shared->name +
           ": their threads are pinned to the same cores (--bind-to core gives each rank its own)";
  }
  return "";
}

std::string not_passed_line(const EnvironmentInputs& inputs) {
  const std::vector<PlannedHost>& hosts = inputs.plan->hosts;
  const auto has_all = [&](const PlannedHost& host) { return inherits_callers(inputs, host); };
  if (std::all_of(hosts.begin(), hosts.end(), has_all)) return "";
  // Users of --env all or none know what is passed.
  if (inputs.options->env_choice != EnvChoice::kListed) return "";
  const Result<Environment> exports = parse_exports(inputs.options->exports, *inputs.caller);
  std::vector<std::string> names;
  for (const EnvVariable& variable : *inputs.caller) {
    const std::string& name = variable.name;
    if (is_login_name(name) || !is_env_name(name)) continue;
    const bool stays = env_rule(name) == EnvRule::kAllow && !may_pass_on(variable);
    if (env_rule(name) != EnvRule::kInherit && !stays) continue;
    if (find_variable(inputs.from_files, name) != nullptr) continue;
    if (exports.ok() && find_variable(exports.value(), name) != nullptr) continue;
    names.push_back(name);
  }
  if (names.empty()) return "";
  std::sort(names.begin(), names.end());
  // Number of names that fit into one line of a terminal.
  constexpr std::size_t kShown = 8;
  std::string line = inputs.options->container.empty() ? "not sent to other hosts:"
                                                       : "not sent to the containers:";
  for (std::size_t i = 0; i < names.size() && i < kShown; ++i)
    line += (i == 0 ? " " : ", ") + names[i];
  if (names.size() > kShown) line += " and " + std::to_string(names.size() - kShown) + " more";
  return line + " (send one with -x " + (names.size() == 1 ? names.front() : "NAME") + ")";
}

}  // namespace ivy
