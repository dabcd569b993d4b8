// SPDX-License-Identifier: Apache-2.0
// The reports of a job for programs: the JSON lines of --events, the file of --metrics-file,
// attempt.json next to the log files of each attempt, and the object of --summary json
// (docs/machine-output.md). Files are written on a separate thread.
//
// Thread: the loop's. Lifetime: within the job's context.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/json.hpp>
#include <chrono>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/drill/fault_log.h"
#include "launcher/job/core/job_request.h"
#include "launcher/job/hosts/host_session.h"
#include "launcher/plan/job_plan.h"
#include "launcher/report/check_verdict.h"
#include "launcher/screen/summary.h"
#include "proto/os/file_writer.h"

namespace ivy {

// Returns the plan as a JSON object: hosts with their ranks and transports, addresses, the command.
boost::json::object plan_object(const Options& options, const JobPlan& plan);

// The file of --metrics-file, replaced as a whole every 15 s and at the end of the job. It is
// written on a separate thread: a file system that does not answer costs the file, not the job.
class MetricsFile {
 public:
  // Calls its argument with the file's text, immediately or later.
  using MakeText = std::function<void(std::function<void(const std::string& text)>)>;

  // path: empty without --metrics-file.
  MetricsFile(boost::asio::io_context& loop, std::string path);
  // Call when the workers are about to run: writes the file a second later, and then every 15 s.
  void begin(MakeText make_text);
  // Writes the last snapshot, and waits for it for at most kMetricsTimeout.
  void end(const std::string& text);
  bool is_wanted() const { return !path_.empty(); }
  // Returns the message of the first failed write; empty: none has failed.
  std::string write_error();

 private:
  void write();
  void replace(std::string_view text);
  void schedule(std::chrono::seconds time);
  void take_done();

  const std::string path_;
  FileWriter writer_;
  boost::asio::steady_timer timer_;
  MakeText make_text_;
  std::string error_;
};

// Writes a line of --events, if that is wanted, for each event of the job, and attempt.json.
class JobReports {
 public:
  JobReports(boost::asio::io_context& loop, const JobRequest& request);

  void planned(const JobPlan& plan);
  void started(std::uint32_t generation, int max_attempts, std::int64_t started_at_ns);
  // A rank has printed something; only the first output of an attempt is an event.
  void output(int rank, int stream) {
    if (is_wanted()) first_output(rank, stream);
  }
  void exited(const WorkerEnd& end);
  // ranks: the ranks of the host whose end is unknown.
  void host_lost(const std::string& host, HostLoss loss, const RemoteText& cause,
                 const std::vector<std::uint32_t>& ranks);
  // A spare has got the node rank of a lost host.
  void spare_used(int node_rank, const std::string& host, const std::string& spare);
  // --grow: a host has come up, and joins at the next restart.
  void host_joined(const std::string& host);
  // A host has failed a check of the health gate before this attempt. is_left_out: the job
  // continues without it.
  void check_failed(const CheckFailure& failure, int attempt, bool is_left_out);
  // A host will be stopped, or no longer. host: empty for the whole job (the end of an allocation).
  // deadline_ns: on the monotonic clock.
  void notice(const std::string& host, const std::string& source, const std::string& reason,
              std::optional<std::int64_t> deadline_ns, bool withdrawn);
  // An attempt has failed, and another one follows after the pause.
  void restarts(const FailedAttempt& attempt, std::chrono::milliseconds pause);
  // A fault of --drill. state: "injected", "ended" (undone) or "result" (its row of the table).
  void drill(const InjectedFault& fault, std::string_view state);
  // The job has ended.
  void verdict(const boost::json::object& verdict);
  // Writes attempt.json, the verdict of an attempt that has ended, to the directory of its log
  // files. folder: empty if there are none; then nothing is written.
  void write_attempt_file(const std::string& folder, const boost::json::object& verdict);
  // Waits for pending writes for at most kEventTimeout.
  void finish();
  // True if a verdict would be written anywhere. Making one copies the output of ranks, so ask
  // first.
  bool wants_verdict(const std::string& folder) const;
  MetricsFile& metrics() { return metrics_; }
  // Returns a message for each kind of file that could not be written completely.
  std::vector<std::string> write_errors();

 private:
  bool is_wanted() const { return file_ != 0; }
  void first_output(int rank, int stream);
  void write(std::string_view event, boost::json::object fields);
  void take_done();

  const JobRequest& request_;
  FileWriter writer_;
  FileWriter::File file_ = 0;    // --events; 0: not wanted.
  std::set<int> printed_ranks_;  // Ranks that have printed something in this attempt.
  MetricsFile metrics_;
  std::int64_t started_at_ns_ = 0;
  std::string events_error_;   // The first reason why an event was not written.
  std::string attempt_error_;  // The first reason why an attempt.json was not written.
};

}  // namespace ivy
