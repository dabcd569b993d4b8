// SPDX-License-Identifier: Apache-2.0
// The jobs that run on this host through this agent, from their opening to their end. The state
// directory keeps the facts that the next agent needs.
//
// A job runs as long as its warden, or as long as any process holds the lock of its directory.
// Thread: the loop's. Lifetime: the loop and `reports` must outlive it. Wardens keep running
// without it.
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
  // Each job has a warden, a supervisor, and a descriptor in this process.
  static constexpr std::size_t kMaxJobs = 1024;

  // Returns Unavailable if another agent uses the directory, and PermissionDenied if other users
  // can access it. Sets damaged records aside with a warning; they do not prevent the start.
  static Result<std::unique_ptr<JobRegistry>> make(boost::asio::io_context& loop,
                                                   std::string directory, AgentReports& reports);
  ~JobRegistry();
  JobRegistry(const JobRegistry&) = delete;
  JobRegistry& operator=(const JobRegistry&) = delete;

  // Takes over an earlier agent's jobs: audit lines of those that have ended may follow
  // immediately.
  void check_all();

  // The job's record, or null if it does not run here.
  const JobRecord* find(const JobKey& key) const;
  bool has_ended_here(const JobKey& key) const { return directory_.has_tombstone(key); }
  std::size_t size() const { return jobs_.size(); }
  std::vector<JobKey> jobs() const;

  // Lists the job from now on and writes its record for the next agent; then calls `done`. The
  // record becomes durable a moment later: a power failure before that ends the job as well, and
  // loses its audit line. After ResourceExhausted (kMaxJobs, or the disk is full) or Unavailable
  // the job is no longer listed.
  void add(const JobRecord& record, std::function<void(const Result<void>&)> done);
  // Returns true between add() and started() or forget().
  bool is_starting(const JobKey& key) const;
  // Removes a job that has not started, as if it had never been added. Writes no audit line.
  void forget(const JobKey& key);
  // Call when the warden runs. Takes over `pidfd`, which is -1 if no descriptor was free.
  void started(const JobKey& key, pid_t pid, int pidfd);
  const std::string& directory() const { return directory_.path(); }
  // Returns the path of the record that the warden writes.
  std::string warden_record(const JobKey& key) const { return directory_.warden_record(key); }
  // Sends SIGTERM to the supervisor, which stops its job gracefully. Retries for a second, because
  // a warden that was just started has no supervisor yet; warns if none is found by then. If
  // `grace` is given, it replaces the job's time from SIGTERM to SIGKILL. Returns true if it did.
  bool stop(const JobKey& key, std::optional<std::chrono::milliseconds> grace = {});

  // Rejects new jobs, or accepts them again; also in later agents.
  void set_draining(bool is_draining);
  bool is_draining() const { return directory_.is_draining(); }

  static std::string boot_id();

 private:
  struct Job;
  using JobPointer = std::shared_ptr<Job>;

  JobRegistry(boost::asio::io_context& loop, std::string directory, AgentReports& reports);
  void keep(JobRecord record);
  // Determines whether the job still runs: check() reads the warden's record, decide() then watches
  // the warden, or checks again later, or ends the job.
  void check(const JobPointer& job);
  void decide(const JobPointer& job);
  void check_later(const JobPointer& job, std::chrono::milliseconds pause);
  void watch(const JobPointer& job, int pidfd);
  void warden_ended(const JobPointer& job);
  // Writes the audit line and the tombstone, and no longer lists the job. Ends no process.
  void end(const JobPointer& job, const std::string& outcome);
  void report_status();
  // Sends SIGTERM. Returns false if the supervisor is not (yet) found.
  static bool signal_supervisor(const Job& job);
  void stop_soon(const JobPointer& job, int checks);
  void schedule_cleanup();

  boost::asio::io_context& loop_;
  StateDirectory directory_;
  AgentReports& reports_;
  std::map<JobKey, JobPointer> jobs_;
  boost::asio::steady_timer hour_;
};

}  // namespace ivy
