// SPDX-License-Identifier: Apache-2.0
// The output of workers and the messages of ivyrun, on their way to the console and to files:
// labels, filters, order, colour, back-pressure. A job in the background has no console for its
// workers: their output goes only to files. ivyrun's messages go to the caller's terminal until the
// job leaves it, and always to LOGDIR/ivyrun.log.
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
#include "launcher/screen/rank_files.h"
#include "launcher/screen/rank_memory.h"

namespace ivy {

// The destination of a job's output: this process's console, or files only.
enum class OutputTarget { kConsole, kBackground };

class Output final : private ConsoleStreamEvents {
 public:
  // The owner outlives the output, and so does elsewhere; null unless in torchrun mode.
  Output(boost::asio::io_context& loop, const OutputOptions& options, std::string job_id,
         OutputTarget target, OutputEvents& owner, OutputElsewhere* elsewhere = nullptr);
  ~Output() { *alive_ = false; }

  // Null: none.
  void follow(OutputFollower* follower) { follower_ = follower; }
  // For a background job: a launcher that has taken the job over appends to the existing files.
  // Call before begin().
  void go_on_with_files() { appends_ = true; }

  // Begins a generation, one of at most max_attempts. Opens the files of ranks (in the
  // background also ivyrun.log), which takes as long as their file system does: `ready` is called
  // once, perhaps at once; ResourceExhausted, PermissionDenied name the path. A later begin() takes
  // the place of one that is not ready.
  using Ready = std::function<void(const Result<void>&)>;
  void begin(std::uint32_t generation, const std::vector<RankPlace>& places, int max_attempts,
             Ready ready);
  // In the background: the stream goes on after its first `bytes` bytes; what its file already had
  // beyond them when it was opened is skipped. Returns how many of these bytes the file lacks.
  std::uint64_t continue_at(int rank, int stream, std::uint64_t bytes);
  // Bytes of one stream (1 or 2) of one rank; end: the stream has ended.
  void worker_bytes(int rank, int stream, std::string_view bytes, bool end);
  // --show-ranks failed: shows the rank's last output, and its output from now on.
  void show_failed(int rank);
  // Lines of ivyrun itself ("ivyrun: ..."), to standard error, never inside a worker's line.
  // Control characters are escaped here, so the text cannot have colours of its own.
  void say(std::string_view text);
  // The one status line of a terminal (replaced each time, empty removes it). On anything but a
  // terminal nothing is shown; the caller says plain lines instead.
  void status_line(const std::string& text);
  bool has_terminal() const;  // Standard error is a terminal that the job has not left.
  // The last bytes of a rank's standard error (at most 64 KiB), for the verdict.
  std::string stderr_tail(int rank) const;
  // The end of a rank's standard error is among the last few lines that workers have on the
  // console.
  bool is_just_shown(int rank) const;
  // Path of a rank's log file, or empty.
  std::string log_path(int rank, int stream) const { return files_.path(rank, stream); }

  // Calls output_closed() if the reader of standard output is gone, even if no rank writes.
  void check_reader();
  // In the background: once everything said so far has been shown, uses the caller's standard
  // descriptors no more and calls left(descriptor of ivyrun.log).
  void leave(std::function<void(int log_fd)> left);
  // Ends partial lines and writes what is queued; calls done when all has left and is in the files,
  // or when it cannot leave within the limit.
  void finish(std::function<void()> done);
  // Limits how long finish() waits for a reader or a file system that takes nothing, from now on.
  // Default: without limit, because output that a paused reader has not taken is not lost; 2 s with
  // --console-overflow=drop.
  void limit_finish(std::chrono::milliseconds limit);
  // Lost console lines because of --console-overflow=drop, and failed file writes, for the summary.
  std::vector<std::string> complaints() const;
  // Why the console could not take what workers printed (a full disk behind it, say); empty when it
  // took everything, or when its reader went away. Log files do not count: the console has it all.
  const std::string& console_failure() const { return console_failure_; }

 private:
  struct RankRecord {
    std::array<Lane, 2> lanes;
    std::string tail;
    std::uint64_t skipped[2] = {0, 0};           // Per stream: bytes to receive that the file has.
    bool waits_for_failure[2] = {false, false};  // --show-ranks failed: hidden until it fails.
    RankMemory memory;                           // The lane's output that was hidden.
  };

  // ConsoleStreamEvents
  void stream_consumed(int host_index, std::uint64_t bytes) override {
    credit_.add(host_index, bytes);
  }
  void stream_moved() override { check_finished(); }
  void stream_failed(const ConsoleStream& stream, int errno_value) override;

  void add_stream(std::size_t index);
  bool is_elsewhere(int host_index) const {
    return elsewhere_ != nullptr && elsewhere_->holds(host_index);
  }
  ConsoleStream* stream_of(int stream) const;
  bool is_shown(const RankPlace& place, int stream) const;
  void add_lanes(const LabelStyle& style, const RankPlace& place);
  std::function<void()> waker();
  void writers_moved();
  void watch_for_stall();
  std::uint64_t written() const;
  void check_finished();
  void leave_console();

  boost::asio::io_context& loop_;
  const OutputOptions options_;
  const std::string job_id_;
  OutputEvents& owner_;
  OutputElsewhere* const elsewhere_;
  OutputFollower* follower_ = nullptr;
  bool is_closed_ = false;  // output_closed() was called.
  // Threads look at this before they wake the loop for us.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  RankFiles files_;
  std::unique_ptr<LauncherLog> log_;  // Null unless the job runs in the background.
  HostCredit credit_;
  // Standard output and error, the second only when it is another place; none once they were left.
  std::array<std::unique_ptr<ConsoleStream>, 2> streams_;
  std::map<int, RankRecord> ranks_;  // In a map, whose elements keep their addresses.
  std::size_t tail_bytes_ = 0;       // Standard error kept of each rank.
  bool appends_ = false;
  std::vector<std::string> complaints_;
  std::string console_failure_;
  boost::asio::steady_timer finish_timer_;
  std::optional<std::chrono::milliseconds> stall_limit_;  // Unset: it may stall for ever.
  std::function<void(int log_fd)> left_;                  // Set by leave() until it is done.
  std::function<void()> done_;                            // Set by finish() until it is done.
};

}  // namespace ivy
