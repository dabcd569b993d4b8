// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/app_plan.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/plan/worker_ports.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

using Words = std::vector<std::string>;

// One rank of an app, and the values of the names in braces there.
struct AppRank {
  const EnvironmentInputs& inputs;
  const PlannedHost& host;
  const PlannedWorker& worker;
  std::map<std::string, std::string, std::less<>> names;
  std::map<std::string, Words, std::less<>> lists;
};

bool runs_on(const PlannedHost& host, const AppRole& role) {
  return role.hosts == RoleHosts::kEvery ||
         (role.hosts == RoleHosts::kFirst) == (host.node_rank == 0);
}

// Returns the elements of a JSON list. `port`: index of the port among those that each host
// reserves.
std::string addresses_of(const AppRank& rank, const AppRole& role, int port) {
  std::string all;
  for (const PlannedHost& host : rank.inputs.plan->hosts) {
    const HostFacts& facts = rank.inputs.facts(host);
    if (!runs_on(host, role) || port >= facts.worker_ports_size()) continue;
    const auto number = static_cast<std::uint16_t>(facts.worker_ports(port));
    all += (all.empty() ? "\"" : ",\"") + with_port(host_address(rank.inputs, host), number) + "\"";
  }
  return all;
}

// The ports of a role follow those of the previous roles, and those of the ranks follow all of
// them.
void name_ports(AppRank& rank) {
  int first = 0;
  for (const AppRole& role : rank.inputs.options->app_spec.roles) {
    const PlannedHost& host =
        role.hosts == RoleHosts::kFirst ? rank.inputs.plan->hosts.front() : rank.host;
    const HostFacts& facts = rank.inputs.facts(host);
    for (int i = 0; i < role.ports && first + i < facts.worker_ports_size(); ++i) {
      const std::string port = std::to_string(facts.worker_ports(first + i));
      if (i == 0) rank.names[role.name + ".port"] = port;
      rank.names[role.name + "." + std::to_string(i)] = port;
    }
    if (role.ports > 0) rank.names[role.name + ".addresses"] = addresses_of(rank, role, first);
    first += role.ports;
  }
}

AppRank app_rank(const EnvironmentInputs& inputs, const PlannedHost& host,
                 const PlannedWorker& worker) {
  const Options& options = *inputs.options;
  const JobPlan& plan = *inputs.plan;
  const HostFacts& facts = inputs.facts(host);
  AppRank rank{inputs, host, worker, {}, {}};
  rank.names = {{"job", plan.job_id.substr(0, 8)},
                {"python", facts.interpreter()},
                {"directory", facts.job_directory()},
                {"head", plan.master_address},
                {"address", host_address(inputs, host)},
                {"node", std::to_string(host.node_rank)},
                {"nodes", std::to_string(plan.hosts.size())},
                {"rank", std::to_string(worker.rank)},
                {"world", std::to_string(plan.world_size)},
                {"local", std::to_string(host.workers.size())},
                {"workers", std::to_string(options.app_workers)},
                {"all-workers", std::to_string(static_cast<std::size_t>(options.app_workers) *
                                               plan.hosts.size())}};
  rank.lists = {{"arguments", options.app_args}, {"program", worker_arguments(options, facts)}};
  name_ports(rank);
  return rank;
}

// Braces without a known name are kept, because JSON has braces too.
std::string replaced(const AppRank& rank, std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t open = text.find('{');
    const std::size_t close = open == std::string_view::npos ? open : text.find('}', open);
    if (close == std::string_view::npos) break;
    const auto found = rank.names.find(text.substr(open + 1, close - open - 1));
    const bool is_known = found != rank.names.end();
    out += text.substr(0, open);
    out += is_known ? found->second : "{";
    text.remove_prefix(is_known ? close + 1 : open + 1);
  }
  return out + std::string(text);
}

Words replaced_words(const AppRank& rank, const Words& words) {
  Words out;
  for (const std::string& word : words) {
    const bool is_braced = word.starts_with('{') && word.ends_with('}');
    const auto list = is_braced ? rank.lists.find(std::string_view(word).substr(1, word.size() - 2))
                                : rank.lists.end();
    if (list == rank.lists.end())
      out.push_back(replaced(rank, word));
    else
      out.insert(out.end(), list->second.begin(), list->second.end());
  }
  return out;
}

template <class Repeated>
void copy_environment(const AppRank& rank, const Environment& from, Repeated* to) {
  for (const EnvVariable& variable : from) {
    Variable* copy = to->Add();
    copy->set_name(variable.name);
    copy->set_value(replaced(rank, variable.value));
  }
}

bool runs_here(const AppRank& rank, const AppRole& role) {
  return rank.worker.local_rank == 0 && runs_on(rank.host, role);
}

void add_server(const AppRank& rank, const AppRole& role, AppPlan& plan) {
  AppServer& server = *plan.add_servers();
  server.set_role(role.name);
  for (std::string& word : replaced_words(rank, role.command))
    server.add_arguments(std::move(word));
  copy_environment(rank, role.environment, server.mutable_environment());
  server.set_may_end(role.may_end);
  server.set_is_first(role.hosts == RoleHosts::kFirst);
  // Without a client, the servers' output is the only output of the job.
  server.set_is_shown(rank.inputs.options->app_spec.client == AppClient::kNone ||
                      rank.inputs.options->verbose > 0);
  if (role.ready.empty()) return;
  const std::string host = role.hosts == RoleHosts::kFirst ? "{head}" : "{address}";
  const std::string address = replaced(rank, host);
  const auto port = rank.names.find(role.name + ".port");
  if (port == rank.names.end()) return;
  server.set_ready_address(with_port(address, std::stoi(port->second)));
  if (role.ready != "port") server.set_ready_path(role.ready);
}

bool needs_python(const AppSpec& app) {
  return std::any_of(app.roles.begin(), app.roles.end(), [](const AppRole& role) {
    return !role.command.empty() && role.command.front() == "{python}";
  });
}

}  // namespace

void check_app_plan(PlanContext& context) {
  const Options& options = context.options;
  if (options.app != App::kRoles || !needs_python(options.app_spec)) return;
  for (const PlannedHost& host : context.plan.hosts) {
    if (!context.facts(host).interpreter().empty()) continue;
    context.reject(
        {.id = "IVY-P035",
         .what = "--app " + options.app_spec.name + " needs a Python interpreter on every host",
         .where = host.name,
         .cause = "the program is not a Python script, so ivyrun did not look for an interpreter",
         .fix = "pass the script itself or -m MODULE to ivyrun, or use --python PATH to choose an "
                "interpreter"});
    return;
  }
}

void add_app_plan(const EnvironmentInputs& inputs, const PlannedHost& host,
                  const PlannedWorker& worker, WorkerSpec& spec) {
  const Options& options = *inputs.options;
  if (options.app != App::kRoles) return;
  const AppSpec& app = options.app_spec;
  const AppRank rank = app_rank(inputs, host, worker);
  AppPlan& plan = *spec.mutable_app();
  plan.set_name(app.name);
  // First start the servers for which the other hosts wait.
  for (const AppRole& role : app.roles)
    if (role.hosts == RoleHosts::kFirst && runs_here(rank, role)) add_server(rank, role, plan);
  for (const AppRole& role : app.roles)
    if (role.hosts != RoleHosts::kFirst && runs_here(rank, role)) add_server(rank, role, plan);
  plan.set_ranks(static_cast<std::uint32_t>(inputs.plan->world_size));
  plan.set_start_seconds(static_cast<std::uint32_t>(
      std::chrono::ceil<std::chrono::seconds>(options.start_timeout).count()));
  if (worker.rank == 0)
    for (std::string& word : replaced_words(rank, app.ready_command))
      plan.add_ready_command(std::move(word));
  plan.set_every_rank_is_client(app.client == AppClient::kEvery);
  plan.set_has_client(app.client == AppClient::kEvery ||
                      (app.client == AppClient::kFirst && worker.rank == 0));
  copy_environment(rank, app.client_environment, plan.mutable_client_environment());
}

}  // namespace ivy
