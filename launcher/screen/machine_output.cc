// SPDX-License-Identifier: Apache-2.0
#include "launcher/screen/machine_output.h"

#include <algorithm>

#include "launcher/screen/json_text.h"

namespace ivy {
namespace {

// Bytes of a rank's last output in the verdict; its log has all of its output.
constexpr std::size_t kMaxTailBytes = 4096;

double seconds_between(std::int64_t from_ns, std::int64_t to_ns) {
  return static_cast<double>(std::max<std::int64_t>(to_ns - from_ns, 0) / 1'000'000) / 1e3;
}

boost::json::array ranks_of(const SummaryInputs& inputs, const std::vector<std::size_t>& indices) {
  std::vector<int> ranks;
  for (const std::size_t index : indices) ranks.push_back((*inputs.ends)[index].rank);
  std::sort(ranks.begin(), ranks.end());
  boost::json::array list;
  for (const int rank : ranks) list.emplace_back(rank);
  return list;
}

boost::json::object failure_object(const SummaryInputs& inputs, std::size_t index) {
  const WorkerEnd& end = (*inputs.ends)[index];
  boost::json::object object = end_object(end, inputs.started_at_ns);
  const std::string traceback = end.status.signal == 0 ? last_traceback(end.stderr_tail) : "";
  if (!traceback.empty()) object["traceback"] = json_text(traceback);
  if (!end.stderr_tail.empty()) {
    const std::size_t kept = std::min(end.stderr_tail.size(), kMaxTailBytes);
    object["stderr_tail"] = json_text(end.stderr_tail.substr(end.stderr_tail.size() - kept));
  }
  const std::string log = inputs.log_path ? inputs.log_path(end.rank) : "";
  if (!log.empty()) object["log"] = json_text(log);
  return object;
}

}  // namespace

std::string_view reason_name(const SummaryInputs& inputs) {
  // Also if it could not be started, although the exit code is then ivyrun's.
  if (inputs.outcome->first) return "worker";
  const LauncherReason reason = inputs.launcher_end->reason;
  if (reason == LauncherReason::kNone && inputs.outcome->exit_code != 0) return "output";
  return reason_row(reason).name;
}

boost::json::object end_object(const WorkerEnd& end, std::int64_t started_at_ns) {
  boost::json::object object{{"rank", end.rank}, {"host", json_text(end.host)}};
  if (end.pid > 0) object["pid"] = end.pid;
  if (!end.exec_failure.empty()) {
    object["not_started"] = json_text(end.exec_failure);
    return object;
  }
  object["exit_code"] = end.status.shell_code();
  if (end.status.signal != 0) object["signal"] = signal_name(end.status.signal);
  if (end.at_ns != 0) object["after_s"] = seconds_between(started_at_ns, end.at_ns);
  if (end.core_dumped) object["core_dumped"] = true;
  if (end.out_of_memory) object["out_of_memory"] = true;
  if (end.after_stop) object["after_stop"] = true;
  if (end.tolerated) object["tolerated"] = true;
  if (end.lost_with_host) object["lost_with_host"] = true;
  if (!end.cause.empty()) object["cause"] = json_text(end.cause);
  return object;
}

boost::json::object verdict_object(const SummaryInputs& inputs) {
  const Outcome& outcome = *inputs.outcome;
  boost::json::object object{{"exit_code", outcome.exit_code},
                             {"origin", outcome.origin_is_worker ? "worker" : "launcher"},
                             {"reason", reason_name(inputs)},
                             {"world_size", inputs.world_size},
                             {"attempt", inputs.attempt},
                             {"max_attempts", inputs.max_attempts}};
  const Diagnostic& message = inputs.launcher_end->diagnostic;
  if (!message.what.empty())
    object["message"] = {{"id", message.id},
                         {"what", json_text(message.what)},
                         {"where", json_text(message.where)},
                         {"cause", json_text(message.cause)},
                         {"fix", json_text(message.fix)}};
  if (outcome.first) object["first"] = failure_object(inputs, *outcome.first);
  boost::json::array also;
  for (const std::size_t index : outcome.candidates)
    also.emplace_back(end_object((*inputs.ends)[index], inputs.started_at_ns));
  object["also_failed"] = std::move(also);
  object["stopped"] = ranks_of(inputs, outcome.victims);
  object["succeeded"] = ranks_of(inputs, outcome.succeeded);
  object["lost"] = ranks_of(inputs, outcome.lost);
  boost::json::array attempts;
  for (const FailedAttempt& attempt : inputs.attempts) {
    boost::json::object failed{{"attempt", attempt.number}, {"cause", json_text(attempt.cause)}};
    if (!attempt.condemned.empty()) failed["condemned"] = json_text(attempt.condemned);
    attempts.emplace_back(std::move(failed));
  }
  object["failed_attempts"] = std::move(attempts);
  object["losses"] = json_list(inputs.losses);
  boost::json::array left_out;
  for (const LeftOutHost& host : inputs.left_out)
    left_out.push_back({{"host", json_text(host.name)}, {"reason", json_text(host.reason)}});
  object["left_out"] = std::move(left_out);
  object["warnings"] = json_list(inputs.output_errors);
  object["left_over"] = json_list(inputs.unclean);
  object["notes"] = json_list(inputs.notes);
  if (!inputs.head_logs.empty()) object["log_directory"] = json_text(inputs.head_logs);
  return object;
}

}  // namespace ivy
