// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/job_planner.h"

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>

#include "launcher/job/core/job_reports.h"
#include "launcher/options/env_files.h"
#include "launcher/plan/explain_env.h"
#include "launcher/plan/plan.h"
#include "launcher/screen/json_text.h"
#include "proto/contract/text.h"
#include "proto/os/files.h"
#include "proto/wire/session.h"

namespace ivy {
namespace {

// Bytes of a command in addition to the host's plan.
constexpr std::size_t kCommandBytes = 64;
// The exit code of --doctor if a check has failed.
constexpr int kDoctorFailed = 1;

}  // namespace

// Returns the options without --master-addr once the first host is gone, and without chosen ranks
// on a restart.
Options JobPlanner::planning_options() const {
  Options options = job_.options;
  if (master_.ok()) {
    options.master_addresses = *master_;
  } else {
    options.master_addr_error = master_.error().message;
  }
  if (!job_.hosts.may_lose_hosts()) return options;
  options.hosts = job_.hosts.node_hosts();
  if (job_.hosts[0].excluded) options.master_addr.clear();
  return options;
}

Result<JobPlan> JobPlanner::plan_nodes(const Options& options,
                                       const std::vector<HostAnswer>& answers,
                                       std::vector<Diagnostic>& rejections) const {
  Result<JobPlan> plan = make_plan(options, job_.request.identity.job_id, answers, rejections);
  if (!plan.ok()) return plan;
  const std::vector<std::size_t> hosts = job_.hosts.node_ranks().hosts();
  for (PlannedHost& host : plan->hosts) host.host_index = hosts[host.host_index];
  return plan;
}

std::string JobPlanner::unfit_spare(std::size_t index) const {
  const std::vector<HostAnswer> nodes = job_.hosts.node_answers();
  std::size_t largest = 0;
  for (std::size_t node = 0; node < nodes.size(); ++node)
    if (nodes[node].is_present &&
        nodes[node].workers.value_or(0) > nodes[largest].workers.value_or(0))
      largest = node;
  Options options = planning_options();
  options.hosts[largest] = *job_.hosts[index].host;
  std::vector<HostAnswer> trial = nodes;
  trial[largest] = job_.hosts.answers()[index];
  trial[largest].workers = nodes[largest].workers;
  // A host that has come back has a node rank, which it would have twice.
  for (std::size_t node = 0; node < nodes.size(); ++node)
    if (node != largest && job_.hosts.node_ranks().hosts()[node] == index)
      trial[node].is_present = false;
  std::vector<Diagnostic> rejections;
  const Result<JobPlan> plan = plan_nodes(options, trial, rejections);
  if (!plan.ok()) return plan.error().message;
  if (rejections.empty()) return "";
  const Diagnostic& first = rejections.front();
  return first.what + (first.cause.empty() ? "" : ": " + first.cause);
}

void JobPlanner::leave_out_unfit_spares() {
  for (std::size_t index = 0; index < job_.hosts.size(); ++index) {
    if (!job_.hosts[index].is_spare) continue;
    const std::string reason = unfit_spare(index);
    if (reason.empty()) continue;
    job_.hosts.exclude(index, {.step = "cannot replace another host", .reason = reason});
  }
}

bool JobPlanner::plan() {
  print_replacements(job_.hosts.replace_lost_hosts());
  std::vector<Diagnostic> rejections;
  Result<JobPlan> plan = plan_nodes(planning_options(), job_.hosts.node_answers(), rejections);
  if (!plan.ok())
    rejections.push_back(Diagnostic{.id = "IVY-P001",
                                    .what = plan.error().message,
                                    .fix = plan.error().fix,
                                    .exit_code = kExitUsage});
  if (job_.options.doctor && plan.ok()) {
    rejections_ = std::exchange(rejections, {});
  }
  if (!rejections.empty()) {
    job_.reject(std::move(rejections), LauncherReason::kRejected);
    return false;
  }
  const bool is_first = job_.plan.hosts.empty();
  const std::string rule = std::exchange(job_.plan, std::move(plan).value()).rule;
  // The numbers of workers are those of the first plan.
  if (job_.hosts.has_spares() && !is_first) job_.plan.rule = rule;
  job_.hosts.take_plan(job_.plan);
  if (is_before_start(job_.phase.state())) leave_out_unfit_spares();
  job_.plan.spares = job_.hosts.spare_names();
  is_new_ = true;
  return true;
}

// Reports the spares that have got the node ranks of lost hosts.
void JobPlanner::print_replacements(const std::vector<HostReplacement>& replacements) {
  for (const HostReplacement& replaced : replacements) {
    const std::string& spare = job_.hosts[replaced.spare].name();
    const std::string& host = job_.hosts[replaced.host].name();
    job_.reports.spare_used(static_cast<int>(replaced.node_rank), host, spare);
    job_.print("spare " + spare + " replaces " + host + " as node " +
               std::to_string(replaced.node_rank));
  }
}

bool JobPlanner::plan_without_excluded_hosts() {
  const JobPlan before = job_.plan;
  if (!plan()) return false;
  JobPlan& now = job_.plan;
  if (now.world_size != before.world_size || !job_.hosts.has_spares())
    job_.print("continuing with " + job_.hosts.members_text());
  job_.screen.note(plan_line(now));
  if (now.hosts.front().host_index != before.hosts.front().host_index) return true;
  now.master_address = before.master_address;
  now.master_port = before.master_port;
  now.coordinator_port = before.coordinator_port;
  now.store_port = before.store_port;
  return true;
}

Result<EnvironmentInputs> JobPlanner::inputs(const std::vector<HostAnswer>& answers) {
  EnvironmentInputs inputs;
  inputs.options = &job_.options;
  inputs.plan = &job_.plan;
  inputs.answers = &answers;
  inputs.caller = &job_.request.caller;
  inputs.started_in = job_.request.started_in;
  inputs.generation = job_.generation;
  inputs.limits = job_.request.limits;
  // Read once, because an --env-file may be a pipe.
  if (!from_files_)
    from_files_ = IVY_TRY(read_env_files(job_.options.env_files, job_.request.caller));
  inputs.from_files = *from_files_;
  inputs.shared_machines = shared_machines(job_.plan, answers);
  for (const PlannedHost& planned : job_.plan.hosts)
    inputs.interfaces.push_back(job_.hosts[planned.host_index].interface);
  return inputs;
}

std::string JobPlanner::dry_run_json(const std::vector<HostAnswer>& answers) const {
  boost::json::object object{{"schema", kMachineSchema}, {"event", "plan"}, {"dry_run", true}};
  for (auto& field : plan_object(job_.options, job_.plan)) object[field.key()] = field.value();
  boost::json::array& hosts = object["hosts"].as_array();
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const HostAnswer& answer = answers[job_.plan.hosts[i].host_index];
    boost::json::object& host = hosts[i].as_object();
    const LinkUp& up = *job_.hosts[job_.plan.hosts[i].host_index].up;
    if (!up.own_command.empty()) host["command"] = json_text(up.own_command);
    host["address"] = json_text(answer.peer_address);
    host["user"] = json_text(answer.facts.user());
    host["cores"] = answer.facts.cores();
    host["accelerators"] = answer.facts.accelerators();
    host["architecture"] = json_text(answer.facts.architecture());
    host["interpreter"] = json_text(answer.facts.interpreter());
    host["interpreter_version"] = json_text(answer.facts.interpreter_version());
  }
  boost::json::array warnings;
  for (const Diagnostic& warning : job_.plan.warnings)
    warnings.push_back({{"id", warning.id}, {"what", json_text(warning.what)}});
  object["warnings"] = std::move(warnings);
  return json_line(object) + "\n";
}

Examination JobPlanner::examination() const {
  Examination examined;
  examined.module = job_.options.check_module;
  examined.rejections = rejections_;
  examined.checks = job_.check_findings;
  for (const HostRecord& record : job_.hosts) {
    ExaminedHost& host = examined.hosts.emplace_back();
    host.name = record.name();
    host.is_up = !record.excluded;
    if (record.excluded) {
      host.step = record.excluded->step;
      host.failure = record.excluded->reason;
      host.fix = record.excluded->fix;
      host.is_about_ports = record.excluded->is_about_ports;
      continue;
    }
    host.transport = transport_name(record.up->transport);
    host.facts = *record.facts;
    host.clock_ms = record.clock.at_ns / 1'000'000;
    host.clock_error_ms = record.clock.error_ns / 1'000'000;
  }
  return examined;
}

Result<void> JobPlanner::write_healthy_hosts(const std::vector<Finding>& findings) const {
  const std::string& path = job_.options.healthy_hostfile;
  if (path.empty()) return {};
  std::set<std::string> failed;
  for (const Finding& finding : findings)
    if (finding.has_failed) failed.insert(finding.hosts.begin(), finding.hosts.end());
  std::vector<Host> healthy;
  for (const HostRecord& record : job_.hosts)
    if (!failed.contains(record.name())) healthy.push_back(*record.host);
  if (!overwrite(path, hostfile_text(healthy)))
    return errno_error(Code::kPermissionDenied, path, errno).context("--healthy-hostfile");
  return {};
}

Result<std::string> JobPlanner::doctor() {
  const Examination examined = examination();
  const std::vector<Finding> findings = find_problems(examined);
  IVY_CHECK(write_healthy_hosts(findings));
  const auto failed = std::count_if(findings.begin(), findings.end(),
                                    [](const Finding& finding) { return finding.has_failed; });
  if (failed > 0)
    job_.end_because(
        LauncherReason::kRejected,
        Diagnostic{.id = "IVY-H013",
                   .what = counted(static_cast<std::size_t>(failed), "check") + " of --doctor " +
                           (failed == 1 ? "has" : "have") + " failed",
                   .exit_code = kDoctorFailed});
  if (!job_.options.doctor_json) return findings_text(examined, findings);
  boost::json::object object{{"schema", kMachineSchema}, {"event", "doctor"}};
  for (auto& field : findings_object(examined, findings)) object[field.key()] = field.value();
  return json_line(object) + "\n";
}

Result<std::string> JobPlanner::dry_run() {
  if (job_.options.doctor) return doctor();
  const std::vector<HostAnswer> answers = job_.hosts.answers();
  const EnvironmentInputs known = IVY_TRY(inputs(answers));
  if (job_.options.explain_env) return explain_environment(known);
  if (job_.options.dry_run_json) return dry_run_json(answers);
  std::string text = plan_table(job_.options, job_.plan, answers);
  for (const PlannedHost& planned : job_.plan.hosts) {
    const HostRecord& host = job_.hosts[planned.host_index];
    if (!host.up->own_command.empty())
      text += "command for " + host.name() + ": " + RemoteText(host.up->own_command).line() + "\n";
  }
  const auto example = std::find_if(
      job_.hosts.begin(), job_.hosts.end(),
      [](const HostRecord& host) { return !host.excluded && !host.up->remote_command.empty(); });
  if (example == job_.hosts.end()) return text;
  if (job_.options.verbose > 0) text += "remote command: " + example->up->remote_command + "\n";
  if (!example->up->listening.empty())
    text += "listens: " + example->up->listening +
            " here (the hosts of the srun step connect to it, with this job's key)\n";
  return text;
}

Result<HostPlan> JobPlanner::host_plan(std::size_t index) {
  const std::vector<HostAnswer> answers = job_.hosts.answers();
  const EnvironmentInputs known = IVY_TRY(inputs(answers));
  return make_host_plan(known, job_.plan.hosts[index]);
}

Result<std::vector<HostPlan>> JobPlanner::host_plans() {
  const std::vector<HostAnswer> answers = job_.hosts.answers();
  const EnvironmentInputs known = IVY_TRY(inputs(answers));
  std::vector<HostPlan> plans;
  for (const PlannedHost& planned : job_.plan.hosts) {
    plans.push_back(IVY_TRY(make_host_plan(known, planned)));
    const std::size_t bytes = plans.back().ByteSizeLong() + kCommandBytes;
    if (bytes <= session::kMaxPayloadBytes) continue;
    return Error{Code::kResourceExhausted,
                 "arguments and environment of the workers on " + planned.name + " take " +
                     std::to_string(bytes) + " bytes; the limit is " +
                     std::to_string(session::kMaxPayloadBytes),
                 "pass fewer or shorter variables and arguments, or use a file"};
  }
  is_new_ = false;
  return plans;
}

Result<std::vector<std::string>> JobPlanner::first_lines() {
  std::vector<std::string> lines;
  if (job_.options.quiet) return lines;
  const std::vector<HostAnswer> answers = job_.hosts.answers();
  const EnvironmentInputs known = IVY_TRY(inputs(answers));
  const JobPlan& plan = job_.plan;
  if (job_.options.display_map) {
    const std::string table = plan_table(job_.options, plan, answers);
    std::string_view rest = table;
    while (!rest.empty()) lines.emplace_back(take_part(rest, '\n'));
  } else if (plan.hosts.size() > 1 || !plan.spares.empty() || job_.options.verbose > 0 ||
             !plan.device_text.empty()) {
    lines.push_back(plan_line(plan));
  }
  const std::string not_passed = not_passed_line(known);
  if (!not_passed.empty()) lines.push_back("note: " + not_passed);
  const std::string pinned = pinned_threads_line(known);
  if (!pinned.empty()) lines.push_back("note: " + pinned);
  if (job_.options.report_bindings)
    for (std::string& line : binding_lines(plan)) lines.push_back(std::move(line));
  return lines;
}

}  // namespace ivy
