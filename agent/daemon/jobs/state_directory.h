// SPDX-License-Identifier: Apache-2.0
// The agent's state directory. Its files tell the next agent which jobs run on this host through
// this agent, which have ended here, and who opened them.
//
//   JOB-HOST.job     written before the warden starts: whose job it is (agent_job_record.h)
//   JOB-HOST.warden  written by the warden: who it is; at the end, how it ended (warden.h)
//   JOB-HOST.ended   the first one, renamed: a tombstone, whose time stamp is the job's end
//   draining         exists while new jobs are rejected, also by later agents
//   lock             locked by the agent that uses the directory; holds its pid
//
// The directory may lie on a file system that stalls, such as a home on a network. Only take() and
// read() access it on the loop, before the agent serves. All later changes are kept in memory and
// written by one thread, in order. Another thread makes records durable, since an fsync may take a
// fifth of a second on a busy disk.
//
// Thread: the loop's. Lifetime: `reports` must outlive it. The destructor waits for queued
// writes, at most kLastWrites, and for the fsync that is under way.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/daemon/jobs/agent_job_record.h"
#include "agent/daemon/jobs/agent_reports.h"
#include "agent/node/roles/warden.h"
#include "proto/contract/status.h"
#include "proto/os/blocking.h"
#include "proto/os/descriptor.h"

namespace ivy {

struct JobKey {
  std::string job_id;
  std::uint32_t host = 0;
  auto operator<=>(const JobKey&) const = default;
};

class StateDirectory {
 public:
  // After this time the same job could be started again: no launcher retries for that long.
  static constexpr std::int64_t kTombstoneSeconds = 24 * 3600;
  static constexpr std::size_t kMaxTombstones = 4096;

  static constexpr std::chrono::milliseconds kLastWrites{500};

  StateDirectory(boost::asio::io_context& loop, std::string path, AgentReports& reports);
  ~StateDirectory();
  const std::string& path() const { return path_; }

  // Creates the directory or checks that no other user can enter it, and locks it. Unavailable when
  // another agent uses it; PermissionDenied when other users can enter it.
  Result<void> take();
  // Returns the jobs that an earlier agent left. Renames damaged records with a warning, and leaves
  // the records of other machines alone.
  std::vector<JobRecord> read();

  // Writes the record of a new job. When `done` is called the next agent on this machine can read
  // it; it becomes durable a moment later. ResourceExhausted when the disk is full; Unavailable.
  void add(const JobRecord& record, std::function<void(const Result<void>&)> done);
  // Removes all files of a job, as if it had never been added.
  void forget(const JobKey& key);
  // Renames the record to a tombstone, which works on a full disk too.
  void mark_ended(const JobKey& key, std::int64_t ended_at);
  bool has_tombstone(const JobKey& key) const { return tombstones_.contains(key); }
  void remove_old_tombstones();
  // Reads the record that a warden writes at warden_record().
  void read_warden(const JobKey& key, std::function<void(const std::optional<WardenRecord>&)> done);
  std::string warden_record(const JobKey& key) const;

  // Takes effect immediately in this agent. Warns if later agents will not know of it, because the
  // file cannot be written.
  void set_draining(bool is_draining);
  bool is_draining() const { return is_draining_; }

 private:
  // Returns the record in this file, or nothing, and then `reason` says why.
  std::optional<JobRecord> read_job(std::string_view name, std::string& reason) const;
  std::string path_of(const JobKey& key, const char* suffix) const;
  void sync_soon(const std::string& path);
  void sync_waiting();
  // Runs work() on the file thread, after everything queued before.
  template <class Work, class Done>
  void later(Work work, Done done);

  const std::string path_;
  AgentReports& reports_;
  Descriptor lock_;
  bool is_draining_ = false;
  std::map<JobKey, std::int64_t> tombstones_;  // When each job ended, in seconds since 1970.
  std::mutex mutex_;                           // The syncing thread reads the paths below.
  std::vector<std::string> waiting_;           // Paths that are to be synced.
  boost::asio::thread_pool syncing_{1};
  struct Unfinished;
  const std::shared_ptr<Unfinished> unfinished_;
  BlockingPool files_;
};

}  // namespace ivy
