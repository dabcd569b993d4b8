#include "launcher/explain_env.h"

#include <algorithm>

#include "launcher/text_columns.h"

namespace ivy {
namespace {

// More of a value would break every table: PATH and its like.
constexpr std::size_t kMaxValueBytes = 60;

std::string shown_value(const std::string& value) {
  if (value.size() <= kMaxValueBytes) return value;
  return value.substr(0, kMaxValueBytes) + "...";
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

// Of a variable that is sent with the plan.
std::string reason_of(const EnvironmentInputs& inputs, const Environment& exports,
                      const EnvVariable& variable) {
  const auto holds = [&](const Environment& environment) {
    const std::string* value = find_variable(environment, variable.name);
    return value != nullptr && *value == variable.value;
  };
  if (env_rule(variable.name) == EnvRule::kSet) return "set for every worker";
  if (holds(exports)) return "-x";
  if (holds(inputs.from_files)) return "--env-file";
  if (holds(*inputs.caller)) return "passed on from this shell";
  if (variable.name.find("VISIBLE_DEVICES") != std::string::npos)
    return "--visible: this worker's, or this host's, accelerators";
  return "ivyrun's default, because nobody has set it";
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

std::string first_worker(const EnvironmentInputs& inputs, const Environment& exports,
                         const HostPlan& plan, const std::string& host) {
  const WorkerSpec& spec = plan.workers(0);
  std::vector<TextRow> rows = {{"variable", "read by", "why"}};
  for (const EnvVariable& variable : environment_of_spec(plan, spec))
    rows.push_back({variable.name + "=" + shown_value(variable.value), reader_of(variable.name),
                    reason_of(inputs, exports, variable)});
  for (const char* name :
       {"IVY_TOKEN_FILE", "IVY_CONTROL", "IVY_HOST_INDEX", "TORCHELASTIC_ERROR_FILE"})
    rows.push_back({std::string(name) + "=...", reader_of(name), "set on the host"});
  return "rank " + std::to_string(spec.rank()) + " on " + host + ":\n" + text_columns(rows);
}

void add_differences(const HostPlan& plan, const std::string& host, std::string& out) {
  for (const int index : {0, plan.workers_size() - 1}) {
    const WorkerSpec& spec = plan.workers(index);
    out += "  rank " + std::to_string(spec.rank()) + " on " + host + ":";
    for (const Variable& variable : spec.environment())
      out += " " + variable.name() + "=" + shown_value(variable.value());
    out += "\n";
    if (plan.workers_size() == 1) break;
  }
}

// The caller's variables that do not reach a worker of this host.
std::string removed_line(const EnvironmentInputs& inputs) {
  std::string names;
  for (const EnvVariable& variable : *inputs.caller)
    if (env_rule(variable.name) == EnvRule::kScrub)
      names += (names.empty() ? "" : ", ") + variable.name + " (" + reader_of(variable.name) + ")";
  return names.empty() ? "" : "taken away from every worker: " + names + "\n";
}

}  // namespace

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
  const bool is_here = hosts.front().carrier == "local";
  out += is_here ? "and everything else that this shell exports\n"
                 : "and everything else that a login there has\n";
  out += removed_line(inputs);
  const std::string not_passed = not_passed_line(inputs);
  if (!not_passed.empty()) out += not_passed + "\n";
  return out + "what differs from rank to rank:\n" + differences;
}

}  // namespace ivy
