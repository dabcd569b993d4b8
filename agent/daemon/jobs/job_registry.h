// SPDX-License-Identifier: Apache-2.0
// The jobs that run on this host through this agent, from their opening to their end. The state
// directory has the facts that the next agent needs.
//
// A job lives as long as its warden, and as long as any process holds the lock of its directory.
// Thread: the loop's. Lifetime: outlived by the loop. Wardens live on without it.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/daemon/jobs/state_directory.h"
#include "proto/contract/status.h"

namespace ivy {

class JobRegistry {
 public:
  // Each costs a warden, a supervisor and a descriptor here.
  static constexpr std::size_t kMaxJobs = 1024;

  struct Handlers {
    std::function<void(const std::string&)> audit;  // One line per job, at its end.
    std::function<void(const std::string&)> warn;   // A warning for the administrator's log.
    std::function<void(const JobKey&)> ended;       // The job is no longer listed.
  };

  // Unavailable when another agent uses the directory; PermissionDenied when it is not ours alone.
  // Damaged records are set aside with a warning: they do not prevent the start.
  static Result<std::unique_ptr<JobRegistry>> make(boost::asio::io_context& loop,
                                                   std::string directory, Handlers handlers);
  ~JobRegistry();
  JobRegistry(const JobRegistry&) = delete;
  JobRegistry& operator=(const JobRegistry&) = delete;

  // Takes over an earlier agent's jobs: `ended` and audit lines may follow immediately.
  void look_at_all();

  // The job's record, or null when it does not live here.
  const JobRecord* find(const JobKey& key) const;
  bool has_ended_here(const JobKey& key) const { return directory_.has_tombstone(key); }
  std::size_t size() const { return jobs_.size(); }
  std::vector<JobKey> jobs() const;

  // The job is listed from now on. `done` is called when its record is written for the next agent
  // on this machine; it is durable a moment later. A power failure between the two ends the job as
  // well, and loses its audit line. ResourceExhausted (kMaxJobs, or the disk is full) and
  // Unavailable: it is no longer listed.
  void add(const JobRecord& record, std::function<void(const Result<void>&)> done);
  // Neither started nor forgotten since add().
  bool is_starting(const JobKey& key) const;
  // Removes a job of which nothing has run, as if it had never been added. No audit line.
  void forget(const JobKey& key);
  // Its warden runs; the registry owns pidfd from here on (-1: there was no descriptor).
  void started(const JobKey& key, pid_t pid, int pidfd);
  const std::string& directory() const { return directory_.path(); }
  // The path of the record that the warden writes.
  std::string warden_record(const JobKey& key) const { return directory_.warden_record(key); }
  // Asks the supervisor to end its job in order. Retries for a second, because a warden that was
  // just started has no supervisor yet; warns when none is found by then. `grace` is its time from
  // TERM to KILL, if not the job's own. False: its supervisor takes the job's own nevertheless.
  bool stop(const JobKey& key, std::optional<std::chrono::milliseconds> grace = {});

  // Rejects new jobs, also in later agents. An error means that only this agent rejects them.
  void set_draining(bool is_draining, std::function<void(const Result<void>&)> done) {
    directory_.set_draining(is_draining, std::move(done));
  }
  bool is_draining() const { return directory_.is_draining(); }

  static std::string boot_id();

 private:
  struct Job;
  using JobPointer = std::shared_ptr<Job>;

  JobRegistry(boost::asio::io_context& loop, std::string directory, Handlers handlers);
  void keep(JobRecord record);
  void look_at(const JobPointer& job);
  void decide(const JobPointer& job);
  void look_again(const JobPointer& job, std::chrono::milliseconds pause);
  void watch(const JobPointer& job, int pidfd);
  void warden_ended(const JobPointer& job);
  void end(const JobPointer& job, const std::string& outcome);
  static bool signal_supervisor(const Job& job);
  void stop_soon(const JobPointer& job, int looks);
  void wait_for_an_hour();

  boost::asio::io_context& loop_;
  StateDirectory directory_;
  const Handlers handlers_;
  std::map<JobKey, JobPointer> jobs_;
  boost::asio::steady_timer hour_;
};

}  // namespace ivy
