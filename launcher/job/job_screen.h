// SPDX-License-Identifier: Apache-2.0
// A job's output: the console, the files and the followers, and the messages when a file system or
// a reader keeps the job waiting. Thread: the loop's. Lifetime: destroy it outside its handlers.
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
  // After a kill the console has this long to take what is still queued.
  static constexpr std::chrono::milliseconds kDrainAfterKill{2'000};
  // The same for the output after Ctrl-C while nothing else is awaited, and in other hurried ends.
  static constexpr std::chrono::milliseconds kInterruptedDrain{100};

  // The request outlives the screen.
  JobScreen(boost::asio::io_context& loop, const JobRequest& request);
  // Before anything else. closed is not called for a detached job.
  void open(Output::Handlers handlers);

  Output& output() { return *output_; }
  const Output& output() const { return *output_; }
  void say(const std::string& text) { output_->say(text); }
  // Says "ivyrun: TEXT", unless --quiet was given.
  void note(const std::string& text);
  void status_line(const std::string& text) { output_->status_line(text); }
  void follow(Output::Listener listener) { output_->listen(std::move(listener)); }

  // Opens the output of a generation, and calls begun, with the reason if it cannot be opened.
  // The file system of --log-dir may be slow: heartbeats continue meanwhile, its user is told after
  // 2 s, and begun gets a refusal after --start-timeout.
  using Begun = std::function<void(const std::optional<Diagnostic>& refusal)>;
  void begin(std::uint32_t generation, const JobPlan& plan, int max_attempts, Begun begun);
  bool is_beginning() const { return begins_; }
  // No generation will begin now: the callback of one that is being opened is not called.
  void stop_waiting();
  // Between two generations: what was awaited belongs to the last one.
  void forget_generation();

  // The end waits for nothing but workers' output: prints that after 2 s.
  void await_reader();
  void stop_awaiting_reader() { reader_timer_.cancel(); }
  // From now on output that its reader does not take is dropped.
  void give_up();
  bool has_given_up() const { return gives_up_; }

  // The end of each worker that has ended, with what the verdict wants to know of its output.
  void add_tail(WorkerEnd& end) const;
  // Directory of this generation's files on this machine and on the hosts; empty: none.
  std::string head_logs(std::uint32_t generation) const;
  std::string node_logs(std::uint32_t generation) const;

 private:
  boost::asio::io_context& loop_;
  const JobRequest& request_;
  const Options& options_;
  std::unique_ptr<Output> output_;
  std::uint32_t serial_ = 0;  // Number of the newest begin()...
  bool begins_ = false;       // ...and whether it is still under way.
  bool awaits_reader_ = false;
  bool gives_up_ = false;
  boost::asio::steady_timer patience_timer_, limit_timer_, reader_timer_;
};

// Every rank's place, for its label.
std::vector<RankPlace> rank_places(const JobPlan& plan);

}  // namespace ivy
