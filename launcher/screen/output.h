// SPDX-License-Identifier: Apache-2.0
// The output of workers and the messages of ivyrun, on their way to the console and to files:
// decides which ranks are shown, makes their labels, and gives hosts credit for what has left
// (back-pressure). A job in the background has no console for its workers: their output goes only
// to files. ivyrun's messages go to the caller's terminal until the job leaves it, and always to
// LOGDIR/ivyrun.log.
//
// A *source* is one stream of one rank (console.h). A *generation* is one run of all workers
// (launcher/job/job.h).
//
// Thread: the loop's. Lifetime: destroy it outside its events.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/options/options.h"
#include "launcher/report/label.h"
#include "launcher/screen/console_stream.h"
#include "launcher/screen/host_credit.h"
#include "launcher/screen/launcher_log.h"
#include "launcher/screen/output_events.h"
#include "launcher/screen/progress_match.h"
#include "launcher/screen/rank_files.h"
#include "launcher/screen/rank_memory.h"

namespace ivy {

// The destination of a job's output: this process's console, or files only.
enum class OutputTarget { kConsole, kBackground };

class Output final : private ConsoleStreamEvents, private FileEvents {
 public:
  // remote_output: in torchrun mode, the other ivyruns; else null. It and the owner outlive the
  // output.
  Output(boost::asio::io_context& loop, const OutputOptions& options, std::string job_id,
         OutputTarget target, OutputEvents& owner, RemoteOutput* remote_output = nullptr);
  ~Output() { *alive_ = false; }

  // The follower gets all later output and messages. Null: none.
  void follow(OutputFollower* follower) { follower_ = follower; }
  // Call before begin() in a launcher that has taken over a background job: it appends to the
  // existing files.
  void append_to_files() { appends_ = true; }

  // Begins a generation, one of at most max_attempts. Opens the files of its ranks (in the
  // background also ivyrun.log) as fast as their file system allows, then calls `ready` once,
  // perhaps before it returns. ResourceExhausted and PermissionDenied name the path. A later
  // begin() replaces a call that has not been answered.
  using Ready = std::function<void(const Result<void>&)>;
  void begin(std::uint32_t generation, const std::vector<RankLocation>& locations, int max_attempts,
             Ready ready);
  // Call in the background after a takeover: worker_bytes() continues after the first `bytes` bytes
  // of this stream. If the file was longer when it was opened, the bytes that it has already are
  // not written again. Returns the number of these `bytes` bytes that the file lacks.
  std::uint64_t continue_at(int rank, int stream, std::uint64_t bytes);
  // Takes bytes of one stream (1 or 2) of one rank. end: the stream has ended.
  void worker_bytes(int rank, int stream, std::string_view bytes, bool end);
  // Another host runs this rank from now on: labels name it, and it gets the credit. Files keep
  // their names.
  void move_rank(const RankLocation& location);
  // --show-ranks failed: shows the rank's last output, and all of its later output.
  void show_failed(int rank);
  // Prints lines of ivyrun itself ("ivyrun: ...") to standard error, never inside a worker's line.
  // Control characters are escaped here, so the text cannot contain colours.
  void print(std::string_view text);
  // Replaces the status line of a terminal; an empty text removes it. Does nothing on anything but
  // a terminal, where the caller prints lines with print() instead.
  void status_line(const std::string& text);
  bool has_terminal() const;  // True if standard error is a terminal that the job has not left.
  // Returns the last bytes of a rank's standard error (at most 64 KiB), for the verdict.
  std::string stderr_tail(int rank) const;
  // True if the end of a rank's standard error is among the last few lines that workers have
  // printed on the console.
  bool was_just_printed(int rank) const;
  // --progress-match: returns the largest step that ranks of this generation have printed, if any.
  std::optional<double> step() const { return progress_ ? progress_->largest() : std::nullopt; }
  // Returns the first one.
  std::optional<double> first_step() const { return progress_ ? progress_->first() : std::nullopt; }
  // Returns the path of a rank's log file; empty: none.
  std::string log_path(int rank, int stream) const { return files_.path(rank, stream); }

  // Calls output_closed() if the reader of standard output has exited, even if no rank writes.
  void check_reader();
  // In the background: waits until everything printed so far has been shown, then stops using the
  // caller's standard descriptors and calls left(descriptor of ivyrun.log).
  void leave(std::function<void(int log_fd)> left);
  // Ends unfinished lines, writes everything that waits, and calls done once it is on the console
  // and in the files, or when nothing has moved for the limit (limit_finish()).
  void finish(std::function<void()> done);
  // Limits how long finish() waits for a reader or a file system that takes nothing, from now on.
  // By default it waits without limit, because output that a paused reader has not taken is not
  // lost; with --console-overflow=drop it waits for 2 s.
  void limit_finish(std::chrono::milliseconds limit);
  // Returns lines for the summary: console lines lost by --console-overflow=drop, and failed
  // writes.
  std::vector<std::string> output_errors() const;
  // Why the console could not take the workers' output, such as a full disk that standard output
  // was redirected to. Empty if it took everything, or if its reader has exited. Log files do not
  // count.
  const std::string& console_failure() const { return console_failure_; }

 private:
  struct RankRecord {
    std::array<OutputSource, 2> sources;  // By index_of(stream).
    std::string tail;                     // The last bytes of its standard error.
    std::uint64_t skipped[2] = {0, 0};    // By stream: bytes that its file has already.
    // By stream: --show-ranks failed hides it until the rank fails.
    bool waits_for_failure[2] = {false, false};
    RankMemory memory;  // The last output that was hidden.
  };

  // ConsoleStreamEvents
  void stream_consumed(int host_index, std::uint64_t bytes) override;
  void stream_progressed() override { check_finished(); }
  void stream_failed(const ConsoleStream& stream, int errno_value) override;
  // FileEvents
  void file_progressed() override;

  void add_stream(std::size_t index);
  bool is_shown_remotely(int host_index) const {
    return remote_output_ != nullptr && remote_output_->shows_elsewhere(host_index);
  }
  ConsoleStream* stream_of(int stream) const;
  bool is_shown(const RankLocation& location, int stream) const;
  void add_sources(const RankLocation& location);
  std::string label_of(const RankLocation& location, int stream) const;
  void grant_credit();
  void writers_progressed();
  void watch_for_stall();
  std::uint64_t written() const;
  void check_finished();
  void leave_console();

  boost::asio::io_context& loop_;
  const OutputOptions options_;
  const std::string job_id_;
  OutputEvents& owner_;
  RemoteOutput* const remote_output_;
  OutputFollower* follower_ = nullptr;
  bool is_closed_ = false;  // output_closed() has been called.
  // Set to false by the destructor, after which queued wake-ups of the loop do nothing.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  RankFiles files_;
  std::unique_ptr<LauncherLog> log_;  // Null unless the job runs in the background.
  HostCredit credit_;
  bool is_grant_posted_ = false;
  // For standard output and standard error. The second is null if both are the same file, and both
  // are null once the job has left the terminal.
  std::array<std::unique_ptr<ConsoleStream>, 2> streams_;
  LabelStyle style_;                 // Of this generation's labels.
  std::map<int, RankRecord> ranks_;  // A map keeps the addresses of the sources.
  std::optional<ProgressMatch> progress_;
  std::size_t tail_bytes_ = 0;  // Bytes of standard error that are kept for each rank.
  bool appends_ = false;
  std::vector<std::string> output_errors_;
  std::string console_failure_;
  boost::asio::steady_timer finish_timer_;
  std::optional<std::chrono::milliseconds> stall_limit_;  // Empty if there is no limit.
  std::function<void(int log_fd)> left_;  // Set by leave() until it has been called.
  std::function<void()> done_;            // Set by finish() until it has been called.
};

}  // namespace ivy
