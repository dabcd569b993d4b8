// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/core/job_workers.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <string_view>
#include <utility>

#include "proto/contract/remote_text.h"
#include "proto/contract/status.h"

namespace ivy {
namespace {

// step: StartFailed.step, a name of agent/node/spawn/spawn.cc.
StartStep start_step(std::string_view step) {
  if (step == "bind") return StartStep::kBind;
  if (step == "stdin") return StartStep::kStdin;
  if (step == "exec") return StartStep::kExec;
  return StartStep::kOther;
}

}  // namespace

void JobWorkers::begin(const JobPlan& plan) {
  workers_.assign(static_cast<std::size_t>(plan.world_size), WorkerRecord());
  running_ = workers_.size();
  started_ = 0;
  attempt_end_.reset();
  for (const PlannedHost& planned : plan.hosts)
    for (const PlannedWorker& worker : planned.workers) {
      WorkerRecord& record = workers_[static_cast<std::size_t>(worker.rank)];
      record.host = planned.host_index;
      record.end.rank = worker.rank;
      record.end.host = planned.name;
    }
}

WorkerRecord* JobWorkers::of(std::size_t host, std::uint32_t rank) {
  return rank < size() && workers_[rank].host == host ? &workers_[rank] : nullptr;
}

void JobWorkers::started(WorkerRecord& worker, int pid) {
  if (worker.end.pid == 0 && worker.rejoins == 0) ++started_;
  worker.end.pid = pid;
}

void JobWorkers::exited(WorkerRecord& worker, const Exited& exited, RelatedTime at) {
  worker.end.pid = exited.pid();
  worker.end.status = ExitStatus{.code = exited.code(), .signal = exited.signal()};
  worker.end.core_dumped = exited.core_dumped();
  worker.end.out_of_memory = exited.out_of_memory();
  worker.end.after_stop = exited.after_stop();
  worker.end.cause = RemoteText(exited.cause()).line();
  worker.mpi_absent = exited.mpi_absent();
  worker.end.error_file = exited.error_file();
  worker.end.operations = exited.operations();
  ended(worker, at);
}

void JobWorkers::start_failed(WorkerRecord& worker, const StartFailed& failed, RelatedTime at) {
  if (failed.step() == "stop") {  // A stop arrived before its process was created.
    worker.end.status.signal = SIGTERM;
    worker.end.after_stop = true;
  } else {
    worker.end.exec_failure =
        errno_error(Code::kNotFound, RemoteText(failed.step()).line(), failed.error()).message +
        (failed.path().empty() ? "" : ": " + RemoteText(failed.path()).line());
    worker.end.failed_step = start_step(failed.step());
    worker.end.failed_errno = failed.error();
    // Only a missing program is "not found". If exec was never reached, for example because of a
    // missing folder, the program is "not executable".
    const bool is_missing = worker.end.failed_step == StartStep::kExec && failed.error() == ENOENT;
    worker.end.status.code = is_missing ? kExitNotFound : kExitNotExecutable;
  }
  // Output of the rank's previous process may still arrive.
  worker.open_streams = worker.rejoins == 0 ? 0 : worker.open_streams - 2;
  ended(worker, at);
}

void JobWorkers::lost_with_host(WorkerRecord& worker, std::int64_t at_ns) {
  worker.end.tolerated = worker.end.lost_with_host = true;
  worker.end.cause = "lost with its host";
  worker.end.status = ExitStatus{.signal = SIGKILL};
  ended(worker, {at_ns, 0});
}

void JobWorkers::moves(WorkerRecord& worker, std::size_t host, const std::string& name) {
  WorkerEnd next;
  next.rank = worker.end.rank;
  next.host = name;
  worker.end = std::move(next);
  worker.host = host;
  // The lost host's streams bring no more output.
  worker.open_streams = 2;
  ++worker.rejoins;
}

void JobWorkers::starts_again(WorkerRecord& worker) {
  WorkerEnd next;
  next.rank = worker.end.rank;
  next.host = worker.end.host;
  worker.end = std::move(next);
  worker.ended = false;
  worker.open_streams += 2;
  ++worker.rejoins;
  ++running_;
}

void JobWorkers::ended(WorkerRecord& worker, RelatedTime at) {
  worker.end.at_ns = at.at_ns;
  worker.end.clock_error_ns = at.error_ns;
  worker.ended = true;
  --running_;
}

void JobWorkers::host_reported(std::size_t host) {
  for (WorkerRecord& worker : workers_)
    if (worker.host == host && worker.end.pid == 0 && worker.rejoins == 0) worker.open_streams = 0;
}

std::vector<std::size_t> JobWorkers::hosts_by_rank() const {
  std::vector<std::size_t> hosts;
  for (const WorkerRecord& worker : workers_) hosts.push_back(worker.host);
  return hosts;
}

std::vector<std::uint32_t> JobWorkers::unfinished_on(std::size_t host) const {
  std::vector<std::uint32_t> ranks;
  for (const WorkerRecord& worker : workers_)
    if (worker.host == host && !worker.ended)
      ranks.push_back(static_cast<std::uint32_t>(worker.end.rank));
  return ranks;
}

bool JobWorkers::has_all_output(const std::function<bool(std::size_t)>& is_lost) const {
  return std::all_of(begin(), end(), [&](const WorkerRecord& worker) {
    return worker.open_streams <= 0 || is_lost(worker.host);
  });
}

}  // namespace ivy
