// What workers print, on its way to the console and to files: labels, filters, order, colour.
// Thread: the loop's.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/options/options.h"

namespace ivy {

// The place of one rank, for its label.
struct RankPlace {
  int rank = 0;
  int local_rank = 0;
  int host_index = 0;  // Tells hosts apart; the same in every generation.
  std::string host;
};

class Output {
 public:
  // consumed(host_index, bytes): bytes of this host's output have been disposed of (written, or
  // dropped by choice); the session grants them again. closed(): the reader of our standard output
  // went away (EPIPE), once.
  struct Handlers {
    std::function<void(int host_index, std::uint64_t bytes)> consumed;
    std::function<void()> closed;
  };
  static std::unique_ptr<Output> make(boost::asio::io_context& loop, const Options& options,
                                      const std::string& job_id, Handlers handlers);
  virtual ~Output() = default;

  // Begins a generation, one of at most max_attempts. Opens the files of --log-dir, which takes as
  // long as their file system does: `ready` is called once, perhaps at once; ResourceExhausted,
  // PermissionDenied name the path. A later begin() takes the place of one that is not ready.
  using Ready = std::function<void(const Result<void>&)>;
  virtual void begin(std::uint32_t generation, const std::vector<RankPlace>& places,
                     int max_attempts, Ready ready) = 0;
  // Bytes of one stream (1 or 2) of one rank; end: the stream has ended.
  virtual void worker_bytes(int rank, int stream, std::string_view bytes, bool end) = 0;
  // Lines of ivyrun itself ("ivyrun: ..."), to standard error, never inside a worker's line.
  // Control characters are escaped here, so the text cannot have colours of its own.
  virtual void say(std::string_view text) = 0;
  // The one status line of a terminal (replaced each time, empty removes it). On anything but a
  // terminal nothing is shown; the caller says plain lines instead.
  virtual void status_line(const std::string& text) = 0;
  virtual bool has_terminal() const = 0;  // Standard error is a terminal.
  // The last bytes of a rank's standard error (at most 64 KiB), for the verdict.
  virtual std::string stderr_tail(int rank) const = 0;
  // The end of a rank's standard error is among the last few lines that workers have on the
  // console.
  virtual bool is_just_shown(int rank) const = 0;
  // Path of a rank's standard error file, or empty.
  virtual std::string log_path(int rank, int stream) const = 0;
  // Ends partial lines and writes what is queued; calls done when all has left and is in the files,
  // or when it cannot leave within the limit.
  virtual void finish(std::function<void()> done) = 0;
  // Limits how long finish() waits for a reader that takes nothing, from now on. Default: without
  // limit, because output that a paused reader has not taken is not lost; 2 s with
  // --console-overflow=drop.
  virtual void limit_finish(std::chrono::milliseconds limit) = 0;
  // Lost console lines because of --console-overflow=drop, and failed file writes, for the summary.
  virtual std::vector<std::string> complaints() const = 0;
  // Why the console could not take what workers printed (a full disk behind it, say); empty when it
  // took everything, or when its reader went away. Log files do not count: the console has it all.
  virtual std::string console_failure() const = 0;
};

}  // namespace ivy
