// SPDX-License-Identifier: Apache-2.0
// A job's output: the console, the files and the followers, and the messages about a file system or
// a reader that keeps the job waiting. Thread: the loop's. Lifetime: destroy it outside its events.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/job/core/job_request.h"
#include "launcher/plan/job_plan.h"
#include "launcher/report/diagnostic.h"
#include "launcher/report/verdict.h"
#include "launcher/screen/output.h"

namespace ivy {

class JobScreen {
 public:
  // Time for the console to take the queued output after a kill...
  static constexpr std::chrono::milliseconds kDrainAfterKill{2'000};
  // ...and after Ctrl-C if only output remains, or in another hurried end.
  static constexpr std::chrono::milliseconds kInterruptedDrain{100};

  // The request outlives this object.
  JobScreen(boost::asio::io_context& loop, const JobRequest& request);
  // Call before anything else. remote_output: null unless in torchrun mode.
  void open(OutputEvents& owner, RemoteOutput* remote_output);

  Output& output() { return *output_; }
  const Output& output() const { return *output_; }
  void print(const std::string& text) { output_->print(text); }
  // Prints "ivyrun: TEXT", unless --quiet was given.
  void note(const std::string& text);
  void status_line(const std::string& text) { output_->status_line(text); }
  void follow(OutputFollower* follower) { output_->follow(follower); }

  // Opens the files of a generation, then calls `opened`: with a rejection if they cannot be
  // opened, or are not open after --start-timeout. If the file system of --log-dir is slow, the
  // user is told after 2 s, and heartbeats continue.
  using Opened = std::function<void(const std::optional<Diagnostic>& rejection)>;
  void open_generation(std::uint32_t generation, const JobPlan& plan, int max_attempts,
                       Opened opened);
  bool is_opening() const { return is_opening_; }
  // Call when no generation will start: cancels the note and the limit of an opening. `opened` is
  // still called if the files open.
  void cancel_opening();
  // Call between two generations: an opening in progress no longer calls back.
  void forget_generation();

  // Call when all ranks have exited and only unread output remains: tells the user after 2 s.
  void start_reader_note();
  void cancel_reader_note() { reader_timer_.cancel(); }
  // Drops output from now on that its reader does not take.
  void discard_unread();
  bool is_discarding() const { return is_discarding_; }

  // Adds the last output of a rank to the record of its end, for the verdict.
  void attach_output_tail(WorkerEnd& end) const;
  // Return the directory of this generation's files on this machine, and on the hosts; empty: none.
  std::string head_logs(std::uint32_t generation) const;
  std::string node_logs(std::uint32_t generation) const;

 private:
  boost::asio::io_context& loop_;
  const JobRequest& request_;
  const Options& options_;
  std::unique_ptr<Output> output_;
  // Number of the last opening, to recognize an answer that comes too late.
  std::uint32_t serial_ = 0;
  bool is_opening_ = false;
  bool is_reader_note_due_ = false;
  bool is_discarding_ = false;
  boost::asio::steady_timer timeout_timer_, limit_timer_, reader_timer_;
};

// Returns the rank, local rank and host of every worker, for the labels of its lines.
std::vector<RankLocation> rank_locations(const JobPlan& plan);

}  // namespace ivy
