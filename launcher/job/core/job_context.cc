// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/core/job_context.h"

#include <sys/random.h>

#include <boost/asio/post.hpp>
#include <utility>

#include "launcher/slurm/allocation_watch.h"
#include "proto/contract/host_ranges.h"
#include "proto/contract/log.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"

namespace ivy {
namespace {

std::string random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  // getrandom() never returns fewer bytes if at most 256 are requested.
  IVY_ASSERT(getrandom(bytes.data(), count, 0) == static_cast<ssize_t>(count));
  return bytes;
}

std::uint32_t takeover_of(const JobRequest& request) {
  return request.record ? request.record->takeover() + 1 : 0;
}

}  // namespace

JobIdentity make_job_identity() {
  return JobIdentity{hexadecimal(random_bytes(16)), random_bytes(32)};
}

void JobPhase::apply(JobEvent event) {
  const JobStep step = job_step(state_, event);
  if (step.next != state_)
    log::debug(std::string("job: ") + name(state_) + " -> " + name(step.next));
  state_ = step.next;
  actions_.act(step.action);
}

void JobPhase::apply_later(JobEvent event) {
  boost::asio::post(loop_, [this, event] { apply(event); });
}

void JobPhase::check_end_later() {
  boost::asio::post(loop_, [this] { check_end(); });
}

JobContext::JobContext(boost::asio::io_context& loop_of_all, JobRequest job_request,
                       JobActions& actions_of_job)
    : loop(loop_of_all),
      request(std::move(job_request)),
      options(request.options),
      takeover(takeover_of(request)),
      actions(actions_of_job),
      phase(loop, actions),
      max_restarts(options.max_restarts),
      hosts(options, takeover == 0),
      screen(loop, request),
      reports(loop, request),
      opened_at_ns(monotonic_ns()) {}

bool JobContext::end_because(LauncherReason reason, Diagnostic diagnostic, int signal) {
  if (has_reason()) return false;
  launcher_end = LauncherEnd{reason, signal, std::move(diagnostic), monotonic_ns()};
  return true;
}

void JobContext::take_attempt_end_as_reason() {
  const std::optional<LauncherEnd>& end = workers.attempt_end();
  if (end && end_because(end->reason, end->diagnostic)) launcher_end.at_ns = end->at_ns;
}

void JobContext::reject(std::vector<Diagnostic> diagnostics, LauncherReason reason) {
  screen.status_line("");
  for (std::size_t index = 0; index + 1 < diagnostics.size(); ++index)
    screen.print(render(diagnostics[index]));
  end_because(reason, std::move(diagnostics.back()));
  phase.apply_later(JobEvent::kRejected);
}

void JobContext::reject_input(const Error& error) {
  reject({Diagnostic{
             .id = "IVY-U002", .what = error.message, .fix = error.fix, .exit_code = kExitUsage}},
         LauncherReason::kRejected);
}

void JobContext::signal_workers(int signal) {
  if (phase.state() != JobState::kRunning && phase.state() != JobState::kStopping) return;
  Command command;
  command.mutable_signal_workers()->set_signal(signal);
  hosts.send_to_planned(command);
}

std::chrono::milliseconds JobContext::grace(std::chrono::milliseconds usual) const {
  usual = requested_grace.value_or(options.shutdown_timeout.value_or(usual));
  return request.allocation_end == nullptr ? usual : request.allocation_end->grace(usual);
}

std::vector<WorkerEnd> JobContext::worker_ends() const {
  std::vector<WorkerEnd> ends;
  for (const WorkerRecord& worker : workers) {
    if (!worker.ended) continue;
    ends.push_back(worker.end);
    screen.attach_output_tail(ends.back());
  }
  return ends;
}

bool JobContext::has_all_output() const {
  return workers.has_all_output([this](std::size_t host) { return hosts[host].lost; });
}

bool JobContext::is_last_attempt() const {
  return !hosts.may_grow() && static_cast<int>(generation) + 1 >= max_attempts() &&
         plan.hosts.size() == 1 && options.fetch.empty();
}

std::string JobContext::stopping_text() const {
  if (!was_started()) return "ending the job, no worker has been started";
  return "stopping " + counted(workers.running(), "worker");
}

MetricsInputs JobContext::metrics_inputs() const {
  MetricsInputs inputs;
  inputs.job_id = request.identity.job_id;
  inputs.name = options.name;
  inputs.program = options.command.empty() ? "" : options.command.front();
  inputs.opened_unix_ms = opened_unix_ms;
  inputs.generation = generation;
  return inputs;
}

std::string leftovers_text(const LeftoverProcesses& left) {
  std::string text = "stopped " + std::to_string(left.count) +
                     (left.count == 1 ? " process" : " processes") + " that ranks left behind on " +
                     fold_host_names({left.hosts.begin(), left.hosts.end()});
  const char* separator = ": ";
  for (const auto& [name, count] : left.names) {
    text += separator + name + (count > 1 ? " (" + std::to_string(count) + ")" : "");
    separator = ", ";
  }
  return text;
}

}  // namespace ivy
