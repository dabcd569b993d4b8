// SPDX-License-Identifier: Apache-2.0
// A job's output: the console, the files and the followers, and the messages when a file system or
// a reader keeps the job waiting. Thread: the loop's. Lifetime: destroy it outside its events.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/job/job_request.h"
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

  // The request outlives the screen.
  JobScreen(boost::asio::io_context& loop, const JobRequest& request);
  // Call before anything else. elsewhere: null unless in torchrun mode.
  void open(OutputEvents& owner, OutputElsewhere* elsewhere);

  Output& output() { return *output_; }
  const Output& output() const { return *output_; }
  void say(const std::string& text) { output_->say(text); }
  // Says "ivyrun: TEXT", unless --quiet was given.
  void note(const std::string& text);
  void status_line(const std::string& text) { output_->status_line(text); }
  void follow(OutputFollower* follower) { output_->follow(follower); }

  // Opens the files of a generation, then calls `opened`, with a refusal if they cannot be opened
  // or are not open after --start-timeout. The file system of --log-dir may be slow: heartbeats
  // continue, and the user is told after 2 s.
  using Opened = std::function<void(const std::optional<Diagnostic>& refusal)>;
  void open_generation(std::uint32_t generation, const JobPlan& plan, int max_attempts,
                       Opened opened);
  bool is_opening() const { return is_opening_; }
  // Call when no generation will start. Cancels the note and the refusal of an opening; `opened` is
  // still called if its files open.
  void cancel_opening();
  // Call between two generations: an opening under way no longer calls back.
  void forget_generation();

  // Call when all ranks have exited and only unread output remains: the user is told after 2 s.
  void start_reader_note();
  void cancel_reader_note() { reader_timer_.cancel(); }
  // From now on output that its reader does not take is dropped.
  void discard_unread();
  bool is_discarding() const { return is_discarding_; }

  // Adds to an exit record what its rank printed last, for the verdict.
  void attach_output_tail(WorkerEnd& end) const;
  // Directory of this generation's files on this machine and on the hosts; empty: none.
  std::string head_logs(std::uint32_t generation) const;
  std::string node_logs(std::uint32_t generation) const;

 private:
  boost::asio::io_context& loop_;
  const JobRequest& request_;
  const Options& options_;
  std::unique_ptr<Output> output_;
  std::uint32_t serial_ = 0;  // Grows with each generation, so that a late opening is recognized.
  bool is_opening_ = false;
  bool is_reader_note_due_ = false;
  bool is_discarding_ = false;
  boost::asio::steady_timer patience_timer_, limit_timer_, reader_timer_;
};

// Returns the rank, local rank and host of every worker, for the labels of its lines.
std::vector<RankPlace> rank_places(const JobPlan& plan);

}  // namespace ivy
