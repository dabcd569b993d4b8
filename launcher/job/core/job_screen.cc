// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/core/job_screen.h"

#include <utility>

namespace ivy {
namespace {

using std::chrono::milliseconds;

// The user is told about a reader or a file system that takes longer than this.
constexpr milliseconds kConsoleTimeout{2'000};

Diagnostic log_dir_rejection(const std::string& what, const std::string& fix) {
  return Diagnostic{.id = "IVY-O002", .what = what, .fix = fix, .exit_code = kExitRejected};
}

}  // namespace

std::vector<RankLocation> rank_locations(const JobPlan& plan) {
  std::vector<RankLocation> all;
  for (const PlannedHost& planned : plan.hosts)
    for (const PlannedWorker& worker : planned.workers)
      all.push_back(RankLocation{worker.rank, worker.local_rank,
                                 static_cast<int>(planned.host_index), planned.name});
  return all;
}

JobScreen::JobScreen(boost::asio::io_context& loop, const JobRequest& request)
    : loop_(loop),
      request_(request),
      options_(request.options),
      timeout_timer_(loop),
      limit_timer_(loop),
      reader_timer_(loop) {}

void JobScreen::open(OutputEvents& owner, RemoteOutput* remote_output) {
  const std::string& job_id = request_.identity.job_id;
  const bool is_detached = request_.detachment != nullptr;
  output_ = std::make_unique<Output>(
      loop_, options_, job_id, is_detached ? OutputTarget::kBackground : OutputTarget::kConsole,
      owner, remote_output);
  if (is_detached && request_.record) output_->append_to_files();
}

void JobScreen::note(const std::string& text) {
  if (!options_.quiet) print("ivyrun: " + text + "\n");
}

void JobScreen::open_generation(std::uint32_t generation, const JobPlan& plan, int max_attempts,
                                Opened opened) {
  is_opening_ = true;
  const std::string called =
      "the file system of " +
      (options_.log_dir.empty() ? "--output " + options_.output : "--log-dir " + options_.log_dir);
  timeout_timer_.expires_after(kConsoleTimeout);
  timeout_timer_.async_wait([this, called](const boost::system::error_code& error) {
    if (!error) note("waiting for " + called);
  });
  limit_timer_.expires_after(options_.start_timeout);
  limit_timer_.async_wait([called, opened](const boost::system::error_code& error) {
    if (!error)
      opened(log_dir_rejection(called + " did not respond within --start-timeout",
                               "choose a directory on another file system, or allow more time: "
                               "--start-timeout"));
  });
  const auto done = [this, opened = std::move(opened),
                     serial = serial_](const Result<void>& result) {
    if (serial != serial_) return;
    is_opening_ = false;
    cancel_opening();
    if (result.ok()) return opened(std::nullopt);
    opened(log_dir_rejection(result.error().message, result.error().fix));
  };
  output_->begin(generation, rank_locations(plan), max_attempts, done);
}

void JobScreen::cancel_opening() {
  timeout_timer_.cancel();
  limit_timer_.cancel();
}

void JobScreen::forget_generation() {
  ++serial_;
  is_opening_ = false;
  is_reader_note_due_ = false;
  reader_timer_.cancel();
}

void JobScreen::start_reader_note() {
  if (is_reader_note_due_ || is_discarding_) return;
  is_reader_note_due_ = true;
  const bool has_files = !options_.output.empty() ||
                         (!options_.log_dir.empty() && options_.log_to != LogLocation::kNode);
  reader_timer_.expires_after(kConsoleTimeout);
  reader_timer_.async_wait([this, has_files](const boost::system::error_code& error) {
    if (error || is_discarding_) return;
    note("all ranks have exited; waiting for the reader of the output" +
         std::string(has_files ? " and its files" : "") + " (Ctrl-C discards the rest)");
  });
}

void JobScreen::discard_unread() {
  is_discarding_ = true;
  output_->limit_finish(kDrainAfterKill);
}

void JobScreen::attach_output_tail(WorkerEnd& end) const {
  end.stderr_tail = output_->stderr_tail(end.rank);
  end.was_just_printed = output_->was_just_printed(end.rank);
}

std::string JobScreen::head_logs(std::uint32_t generation) const {
  if (options_.log_dir.empty() || options_.log_to == LogLocation::kNode) return "";
  return log_folder(options_.log_dir, request_.identity.job_id, generation);
}

std::string JobScreen::node_logs(std::uint32_t generation) const {
  if (options_.log_dir.empty() || options_.log_to == LogLocation::kHead) return "";
  const std::string folder = log_folder(options_.log_dir, request_.identity.job_id, generation);
  return folder.starts_with('/') ? folder : request_.started_in + "/" + folder;
}

}  // namespace ivy
