// SPDX-License-Identifier: Apache-2.0
// --progress-file: reads the files on rank 0's host before the first attempt and after each one
// (`ivy-node progress` there). Files that cannot be read within a limit leave the progress unknown,
// which a warning says. Thread: the loop's. Lifetime: as long as the job.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "launcher/job/core/job_context.h"
#include "launcher/plan/progress_file.h"
#include "launcher/streams/sequence.h"
#include "proto/wire/progress.pb.h"
#include "proto/wire/stage_codec.h"

namespace ivy {

class ProgressReader {
 public:
  explicit ProgressReader(JobContext& job) : job_(job), timer_(job.loop) {}

  bool is_wanted() const;
  // Reads the files as the job finds them. Does nothing unless is_wanted().
  Awaitable<void> read_start(Sequence& steps);
  // Call when nothing of the present attempt is left. Returns whether its files have been read;
  // otherwise reads them, and calls JobPhase::check_end() then.
  bool has_read();
  bool is_reading() const { return done_ != nullptr; }
  // Output of `ivy-node progress` on this host.
  void take(std::size_t host, const TaskOutput& output);
  // No question follows: drops an open one, and the host's task ends.
  void finish();

  // The result for the present attempt, after has_read().
  ProgressMove move() const { return move_; }
  // ProgressFile::text() and the host.
  std::string state() const;

 private:
  // `done` may be called before it returns.
  void ask(std::function<void()> done);
  void conclude(const ProgressSample& sample, const std::string& why_unknown);

  JobContext& job_;
  boost::asio::steady_timer timer_;
  std::optional<std::size_t> host_;  // That was asked last.
  ProgressFile file_;                // Of this host.
  stage::MessageSplitter answers_;   // Of this host.
  std::uint32_t number_ = 0;         // Of the last question.
  std::function<void()> done_;       // Set while a question is open.
  std::optional<std::uint32_t> read_generation_;
  ProgressMove move_ = ProgressMove::kUnknown;
};

}  // namespace ivy
