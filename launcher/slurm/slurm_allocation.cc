// SPDX-License-Identifier: Apache-2.0
#include "launcher/slurm/slurm_allocation.h"

#include <algorithm>
#include <set>

#include "launcher/slurm/nodelist.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

// Advice that helps with any problem of the variables.
constexpr const char* kNotMeant =
    "start it with sbatch, salloc or srun\n"
    "or, to ignore the Slurm job: env -u SLURM_JOB_ID -u SLURM_JOBID ivyrun ...";

struct Reader {
  const Environment& environment;

  // An empty variable counts as unset.
  const std::string* find(std::string_view name) const {
    const std::string* value = find_variable(environment, name);
    return value == nullptr || value->empty() ? nullptr : value;
  }
  const std::string* find(std::string_view name, std::string_view older) const {
    const std::string* value = find(name);
    return value != nullptr ? value : find(older);
  }
  std::string text(std::string_view name) const {
    const std::string* value = find(name);
    return value == nullptr ? "" : *value;
  }

  template <class Number>
  Result<std::optional<Number>> number(std::string_view name) const {
    const std::string* value = find(name);
    if (value == nullptr) return std::optional<Number>{};
    const std::optional<Number> number = to_number<Number>(*value);
    if (number.value_or(-1) < 0) return bad(name, *value);
    return number;
  }

  Error bad(std::string_view name, const std::string& value) const {
    return Error{Code::kInvalidArgument,
                 std::string(name) + "=" + value + " is not a value that Slurm sets", kNotMeant};
  }
};

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

Result<void> read_hosts(const Reader& reader, SlurmAllocation& out) {
  const std::string* list = reader.find("SLURM_JOB_NODELIST", "SLURM_NODELIST");
  if (list == nullptr)
    return Error{Code::kInvalidArgument,
                 "SLURM_JOB_ID=" + out.job_id + " is set, but SLURM_JOB_NODELIST is not",
                 kNotMeant};
  out.nodelist = *list;
  Result<std::vector<std::string>> hosts = parse_nodelist(*list);
  if (!hosts.ok()) {
    Error error = hosts.error().context("SLURM_JOB_NODELIST=" + *list);
    error.fix = kNotMeant;
    return error;
  }
  out.hosts = std::move(hosts).value();
  std::set<std::string> seen;
  for (const std::string& host : out.hosts)
    if (!seen.insert(host).second)
      return Error{Code::kInvalidArgument,
                   "SLURM_JOB_NODELIST=" + *list + " names " + host + " twice", kNotMeant};
  const std::optional<int> count = IVY_TRY(reader.number<int>("SLURM_JOB_NUM_NODES"));
  if (count && static_cast<std::size_t>(*count) != out.hosts.size())
    return Error{Code::kInvalidArgument,
                 "SLURM_JOB_NODELIST=" + *list + " has " + std::to_string(out.hosts.size()) +
                     " hosts, but SLURM_JOB_NUM_NODES is " + std::to_string(*count),
                 kNotMeant};
  return {};
}

// Checks that the counts of processors match the number of hosts.
Result<void> check_cpus(const Reader& reader, const SlurmAllocation& out) {
  const std::string* text = reader.find("SLURM_JOB_CPUS_PER_NODE");
  if (text == nullptr) return {};
  const Result<std::vector<int>> counts = parse_node_counts(*text);
  if (counts.ok() && counts->size() == out.hosts.size()) return {};
  return Error{Code::kInvalidArgument,
               "SLURM_JOB_CPUS_PER_NODE=" + *text + " does not match SLURM_JOB_NODELIST=" +
                   out.nodelist + " (" + std::to_string(out.hosts.size()) + " hosts)",
               kNotMeant};
}

// More than any host has; a limit, since the variable may contain anything.
constexpr int kMaxGpus = 4096;

// Parses "2", "a100:1,h100:1", "a100", and "cpu=4,gres/gpu:a100=2", in which other resources are
// ignored.
int gpus_in(std::string_view text) {
  const bool has_kinds = text.find("gpu") != text.npos;
  int total = 0;
  while (!text.empty()) {
    const std::string_view part = take_part(text, ',');
    if (has_kinds && part.find("gpu") == part.npos) continue;
    const std::string_view number = part.substr(part.find_last_of(":=") + 1);
    // A type without a count means one device; the type may start with a digit.
    const std::optional<int> count = is_number(number) ? to_number<int>(number) : 1;
    total = std::min(total + std::min(count.value_or(1), kMaxGpus), kMaxGpus);
  }
  return total;
}

void read_gpus(const Reader& reader, SlurmAllocation& out) {
  constexpr std::pair<const char*, const char*> kRequested[] = {
      {"SLURM_GPUS_PER_TASK", "--gpus-per-task"},
      {"SLURM_GPUS_PER_NODE", "--gpus-per-node"},
      {"SLURM_GPUS_PER_SOCKET", "--gpus-per-socket"},
      {"SLURM_GPUS", "--gpus"},
  };
  for (const auto& [variable, flag] : kRequested) {
    const std::string* value = reader.find(variable);
    if (value == nullptr) continue;
    out.gpus_requested +=
        (out.gpus_requested.empty() ? "" : " ") + std::string(flag) + " " + *value;
  }
  // Newer versions of Slurm report --gpus-per-task as a trackable resource, and the binding in
  // another variable.
  const std::string per_task = reader.text("SLURM_TRES_PER_TASK");
  const std::string bind = reader.text("SLURM_TRES_BIND");
  const bool has_per_task = per_task.find("gpu") != std::string::npos;
  if (reader.find("SLURM_GPUS_PER_TASK") != nullptr || has_per_task ||
      bind.find("gpu:per_task") != std::string::npos) {
    out.gpus_bound_by = "--gpus-per-task";
  } else if (bind.find("gpu:single") != std::string::npos) {
    out.gpus_bound_by = "--gpu-bind=single";
  }
  if (out.gpus_requested.empty() && has_per_task)
    out.gpus_requested = "--tres-per-task " + per_task;
  const std::string* each = reader.find("SLURM_GPUS_PER_TASK");
  const std::string* tasks = reader.find("SLURM_TASKS_PER_NODE");
  if (tasks == nullptr || (each == nullptr && !has_per_task)) return;
  const Result<std::vector<int>> counts = parse_node_counts(*tasks);
  if (!counts.ok() || counts->size() != out.hosts.size()) return;
  for (const int count : *counts)
    out.gpus.push_back(std::min(count, kMaxGpus) * gpus_in(each ? *each : per_task));
}

Result<void> read_place(const Reader& reader, SlurmAllocation& out) {
  out.node_name = reader.text("SLURMD_NODENAME");
  const auto at = std::find(out.hosts.begin(), out.hosts.end(), out.node_name);
  if (at != out.hosts.end()) out.node_id = static_cast<int>(at - out.hosts.begin());
  // A worker of ivyrun has these variables from us; they describe its rank in our own job.
  if (reader.find("IVY_RANK") != nullptr) return {};
  const std::string* id = reader.find("SLURM_STEP_ID", "SLURM_STEPID");
  const std::optional<int> task = IVY_TRY(reader.number<int>("SLURM_PROCID"));
  if (id == nullptr || !task) return {};
  SlurmStep step;
  step.id = *id;
  step.task = *task;
  std::optional<int> tasks = IVY_TRY(reader.number<int>("SLURM_STEP_NUM_TASKS"));
  if (!tasks) tasks = IVY_TRY(reader.number<int>("SLURM_NTASKS"));
  step.tasks = tasks.value_or(1);
  out.step = step;
  return {};
}

}  // namespace

std::string SlurmAllocation::name() const {
  if (array_job_id.empty()) return "Slurm job " + job_id;
  return "Slurm job " + job_id + " (" + array_job_id + "_" + array_task_id + ")";
}

std::optional<int> SlurmAllocation::gpus_of(std::string_view host) const {
  const auto at = std::find(hosts.begin(), hosts.end(), host);
  // Without a list, the number of this node stands for all.
  if (gpus.empty() || at == hosts.end()) return gpus_here;
  return gpus[static_cast<std::size_t>(at - hosts.begin())];
}

bool is_in_slurm(const Environment& environment) {
  return Reader{environment}.find("SLURM_JOB_ID", "SLURM_JOBID") != nullptr;
}

Result<std::optional<SlurmAllocation>> read_slurm_allocation(const Environment& environment) {
  const Reader reader{environment};
  const std::string* id = reader.find("SLURM_JOB_ID", "SLURM_JOBID");
  if (id == nullptr) return std::optional<SlurmAllocation>{};
  SlurmAllocation out;
  out.job_id = *id;
  if (!is_number(*id)) return reader.bad("SLURM_JOB_ID", *id);
  const std::optional<int> components = IVY_TRY(reader.number<int>("SLURM_HET_SIZE"));
  if (components.value_or(1) > 1)
    return Error{Code::kFailedPrecondition,
                 "Slurm job " + *id + " is a heterogeneous job of " + std::to_string(*components) +
                     " components (SLURM_HET_SIZE), which ivyrun does not support",
                 "request all hosts in one component (no \":\" and no \"#SBATCH hetjob\")"};
  IVY_CHECK(read_hosts(reader, out));
  IVY_CHECK(check_cpus(reader, out));
  IVY_CHECK(read_place(reader, out));
  read_gpus(reader, out);
  out.array_job_id = reader.text("SLURM_ARRAY_JOB_ID");
  out.array_task_id = reader.text("SLURM_ARRAY_TASK_ID");
  out.gpus_here = IVY_TRY(reader.number<int>("SLURM_GPUS_ON_NODE"));
  out.end_unix_s = IVY_TRY(reader.number<std::int64_t>("SLURM_JOB_END_TIME"));
  return std::optional<SlurmAllocation>{std::move(out)};
}

}  // namespace ivy
