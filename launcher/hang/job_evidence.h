// SPDX-License-Identifier: Apache-2.0
// Determines the position of each rank when a job hangs or a collective library's watchdog has
// ended it: queries the hosts, parses torch's flight records, and summarizes the answers.
// agent/node/hang/stack_collector.h limits the cost of a query for a host; the flight records of
// all hosts together are limited to 96 MiB.
//
// Thread: the loop's. Lifetime: destroy it outside its callbacks; none is called afterwards.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "launcher/hang/flight_analysis.h"
#include "launcher/hang/stack_lines.h"
#include "proto/wire/ctl.pb.h"
#include "proto/wire/job.pb.h"

namespace ivy {

// Whether a collective library's watchdog ended the failed worker.
enum class WatchdogAbort { kNo, kYes, kNotKnownYet };

// The job whose ranks JobEvidence examines. Implemented by RankEvents and by tests.
class ExaminedJob {
 public:
  struct HostRanks {
    std::size_t host = 0;
    std::string name;
    std::vector<std::uint32_t> ranks;
  };
  // Returns false if nothing can be sent to that host any longer.
  virtual bool send(std::size_t host, const Command& command) = 0;
  virtual std::vector<HostRanks> ranks_by_host() = 0;
  // Returns true if workers are running and nothing is being stopped.
  virtual bool is_running() = 0;
  virtual WatchdogAbort watchdog_abort() = 0;
  virtual void print(const std::string& text) = 0;
  // Called when a stall has been reported and continues.
  virtual void stall_continues() = 0;

 protected:
  ~ExaminedJob() = default;
};

class JobEvidence {
 public:
  struct Question {
    std::set<std::uint32_t> ranks;  // Empty if all ranks are queried.
    bool native = false;
    bool light = false;
    bool flight_records = true;
    bool records_only = false;  // No stacks, so no rank gets a signal.
    std::chrono::milliseconds timeout{5'000};
  };
  struct Answer {
    std::vector<HostStacks> hosts;  // Without the bytes of flight records.
    std::vector<std::string> silent;
    std::vector<RankFlight> flights;
    std::vector<std::string> notes;   // Records and answers that could not be obtained or parsed.
    std::vector<std::string> places;  // flight_lines(), or else NCCL's.
    std::vector<std::string> lines;   // For the terminal: places and the notes.
    // Ranks are missing because too many other queries were pending, here or on a host.
    bool is_incomplete = false;
  };
  using Done = std::function<void(const Answer& answer)>;

  // Limit of concurrent queries; a further one is answered immediately with nothing.
  static constexpr std::size_t kMaxQuestions = 8;

  JobEvidence(boost::asio::io_context& loop, ExaminedJob& job);
  ~JobEvidence();
  JobEvidence(const JobEvidence&) = delete;
  JobEvidence& operator=(const JobEvidence&) = delete;

  void query(const Question& question, Done done);
  void on_part(std::size_t host, const EvidencePart& part);
  // Answers `ivyctl stack` and similar requests with a text.
  void describe(const ctl::DescribeStacks& request, std::function<void(const std::string&)> done);

  // Watches the job from now on. Reports the ranks' positions if no rank has printed anything for
  // `limit` and none has moved between two samples; once, until a rank prints again. Zero disables
  // this.
  void watch(std::chrono::seconds limit);
  // Call when a rank has printed output; output caused by a query itself does not count.
  void output_printed();
  // Call when another detector has reported a stall; reports the ranks' positions.
  void stalled();

  // Call when a worker has failed and no other has been stopped yet. If a watchdog ended the
  // worker, first collects and prints the positions of the others, for at most 5 s. Calls `done`
  // once.
  void after_failure(std::function<void()> done);
  // Returns the first line of the latest report, about a failure or a stall; empty if none.
  const std::string& finding() const { return finding_; }

 private:
  struct Open;
  void answer(const std::shared_ptr<Open>& open);
  // Returns false if the answer cannot be parsed.
  bool host_answered(Open& open, std::size_t host, const std::string& bytes);
  std::size_t pending_bytes() const;
  void wait_second();
  void check_stall();
  void sample_positions(Done done);
  void compare_positions(const Answer& first);
  void note_progress();
  void wait_for_output(int pauses, std::function<void()> done);
  void report(const std::string& what, std::chrono::milliseconds timeout,
              std::function<void()> done);

  ExaminedJob& job_;
  boost::asio::io_context& loop_;
  std::vector<std::shared_ptr<Open>> open_;
  std::uint32_t next_number_ = 0;
  boost::asio::steady_timer stall_timer_;
  boost::asio::steady_timer pause_timer_;
  boost::asio::steady_timer abort_timer_;
  std::chrono::seconds limit_{0};
  std::int64_t moved_at_ns_ = 0;
  std::int64_t echo_until_ns_ = 0;  // Until then, output may be caused by our own query.
  bool is_sampling_ = false;
  bool is_reported_ = false;  // The current stall was reported.
  std::string finding_;
};

// Returns the text of `ivyctl stack`.
std::string evidence_text(const JobEvidence::Answer& answer, StackDetail detail);

}  // namespace ivy
