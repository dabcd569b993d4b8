// Which jobs live on this host through this agent, which have ended here, and whose they were. One
// file per job in the state directory preserves this for the next agent:
//
//   JOB-HOST.job     written before the warden starts: whose job it is (job_record.h)
//   JOB-HOST.warden  written by the warden: who it is; at the end, how it ended (warden.h)
//   JOB-HOST.ended   the first one, renamed: a tombstone, whose time stamp is the job's end
//   draining         exists while new jobs are refused, also by an agent that is started again
//   lock             locked by the agent that uses the directory; holds its pid
//
// A job lives as long as its warden, and as long as any process holds the lock of its directory.
// Thread: the loop's. Lifetime: outlived by the loop. Wardens live on without it.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/daemon/job_record.h"
#include "agent/daemon/sync_thread.h"
#include "agent/node/roles/warden.h"
#include "proto/contract/status.h"

namespace ivy {

struct JobKey {
  std::string job_id;
  std::uint32_t host = 0;
  auto operator<=>(const JobKey&) const = default;
};

class JobRegistry {
 public:
  // A job that is asked for again after this time is started again: no launcher waits that long.
  static constexpr std::int64_t kTombstoneSeconds = 24 * 3600;
  static constexpr std::size_t kMaxTombstones = 4096;
  // Each costs a warden, a supervisor and a descriptor here.
  static constexpr std::size_t kMaxJobs = 1024;

  struct Handlers {
    std::function<void(const std::string&)> audit;  // One line per job, at its end.
    std::function<void(const std::string&)> warn;   // Warnings for the administrator.
    std::function<void(const JobKey&)> ended;       // The job is no longer listed.
  };

  // Unavailable when another agent uses the directory; PermissionDenied when it is not ours alone.
  // Damaged records are set aside with a warning: they do not prevent the start.
  static Result<std::unique_ptr<JobRegistry>> make(boost::asio::io_context& loop,
                                                   std::string directory, Handlers handlers);
  ~JobRegistry();
  JobRegistry(const JobRegistry&) = delete;
  JobRegistry& operator=(const JobRegistry&) = delete;

  // Takes over what an earlier agent left: `ended` and audit lines may come at once.
  void look_at_all();

  // The job's record, or null when it does not live here.
  const JobRecord* find(const JobKey& key) const;
  bool has_ended_here(const JobKey& key) const;
  std::size_t size() const { return jobs_.size(); }
  std::vector<JobKey> jobs() const;

  // Writes the record: at once for the next agent on this machine, durably a moment later. A power
  // failure between the two ends the job as well, and loses its audit line. ResourceExhausted
  // (kMaxJobs, or the disk is full), Unavailable.
  Result<void> add(const JobRecord& record);
  // Removes a job of which nothing has run, as if it had never been added. No audit line.
  void forget(const JobKey& key);
  // Its warden runs; the registry owns pidfd from here on (-1: there was no descriptor).
  void started(const JobKey& key, pid_t pid, int pidfd);
  // The path of the record that the warden writes.
  std::string warden_record(const JobKey& key) const;
  // Asks the supervisor to end its job in order. Retries for a second, because a warden that was
  // just started has no supervisor yet; warns when none is found by then.
  void stop(const JobKey& key);

  // New jobs are refused, by this agent and by later ones. An error means that only this agent
  // refuses them.
  Result<void> set_draining(bool is_draining);
  bool is_draining() const { return is_draining_; }

  static std::string boot_id();

 private:
  struct Job;
  struct Tombstone {
    std::int64_t ended_at = 0;
  };
  using JobPointer = std::shared_ptr<Job>;

  JobRegistry(boost::asio::io_context& loop, std::string directory, Handlers handlers);
  Result<void> take_directory();
  void read_directory();
  void read_job(const std::string& name);
  std::string path_of(const JobKey& key, const char* suffix) const;
  void look_at(const JobPointer& job);
  void look_again(const JobPointer& job, std::chrono::milliseconds pause);
  void watch(const JobPointer& job, int pidfd);
  void warden_ended(const JobPointer& job);
  void end(const JobPointer& job, const std::string& outcome);
  bool signal_supervisor(const JobKey& key) const;
  void stop_soon(const JobPointer& job, int looks);
  void bury(const JobKey& key, std::int64_t ended_at);
  void remove_old_tombstones();
  void wait_for_an_hour();
  std::optional<WardenRecord> read_warden(const JobKey& key) const;

  boost::asio::io_context& loop_;
  const std::string directory_;
  const Handlers handlers_;
  SyncThread syncing_;
  int lock_fd_ = -1;
  bool is_draining_ = false;
  std::map<JobKey, JobPointer> jobs_;
  std::map<JobKey, Tombstone> tombstones_;
  boost::asio::steady_timer hour_;
};

}  // namespace ivy
