// SPDX-License-Identifier: Apache-2.0
// Moves the workers' output from their pipes into the session, within the launcher's credit, and
// into their log files, which another thread writes. Reads a pipe only if both accept more: a
// launcher that does not read, or a file system that does not respond, slows the workers down, but
// never blocks the loop or fills memory. Streams with data take turns, one chunk each. Thread: the
// loop's. Lifetime: the session must outlive it; streams live as long as the pump.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/node/workers/node_rank_file.h"
#include "proto/os/file_writer.h"
#include "proto/wire/session.h"

namespace ivy {

// Implemented by HostWorkers (../supervisor).
class OutputPumpEvents {
 public:
  // The session has new frames to send.
  virtual void output_queued() = 0;
  // A rank's log file has been given up.
  virtual void log_failed(const std::string& text) = 0;

 protected:
  ~OutputPumpEvents() = default;
};

class OutputPump {
 public:
  // Largest chunk per read: a full pipe of Linux's default size.
  static constexpr std::size_t kChunkBytes = 64u << 10;
  // With less credit than this, no pipe is read: tiny frames would cost more than they carry.
  static constexpr std::size_t kMinFreeBytes = 4096;
  // Bytes that may wait for the file system, for all log files together.
  static constexpr std::size_t kLogRoomBytes = 4u << 20;

  struct StreamName {
    std::uint32_t generation = 0;
    std::uint32_t rank = 0;
    std::uint8_t stream = 1;
    bool operator==(const StreamName&) const = default;
  };

  // The bytes given to the session so far.
  struct Progress {
    StreamName name;
    std::uint64_t bytes = 0;
    bool ended = false;
  };

  using StreamId = std::size_t;

  OutputPump(boost::asio::io_context& loop, session::Session& session, OutputPumpEvents& owner);
  ~OutputPump();

  // Takes ownership of a non-blocking descriptor. Calls `ended` once, when the end of the stream is
  // queued and its log file, if any, is complete; never from inside add().
  StreamId add(int fd, const StreamName& name, const std::optional<NodeRankFile::Name>& log,
               std::function<void()> ended);
  // Call when credit may have arrived: reads as much as the credit allows.
  void pump();
  // Ends the stream of a worker that exited and whose drain time is over: reads the current
  // contents of the pipe, and then ends the stream even if another process still holds the pipe
  // open.
  void cut(StreamId id);
  // Advances the clock. Gives up the log files of streams that were cut if the file system has
  // accepted nothing for `timeout_ns`, so that a job ends even if a disk never responds.
  void tick(std::uint64_t elapsed_ns, std::uint64_t timeout_ns);
  std::vector<Progress> progress() const;
  // From now on reads output and discards it, so that workers do not block when no reader is left.
  void discard();

 private:
  struct Stream;
  void wait(Stream& stream);
  bool has_credit() const;
  void read_once(Stream& stream);
  void forward(Stream& stream, std::string_view bytes);
  void end(Stream& stream);
  void open_log(Stream& stream, const NodeRankFile::Name& name);
  void logs_moved();
  void give_up_log(Stream& stream, std::uint64_t timeout_ns);

  boost::asio::io_context& loop_;
  session::Session& session_;
  OutputPumpEvents& owner_;
  std::unique_ptr<FileWriter> writer_;  // Created with the first log file.
  std::vector<std::unique_ptr<Stream>> streams_;
  std::deque<Stream*> ready_;  // Each stream at most once in ready_ and held_ together.
  std::deque<Stream*> held_;   // Ready, but waiting for the queue of log files.
  std::map<FileWriter::File, Stream*> logs_;  // Streams whose file is still open.
  bool logs_have_moved_ = false;
  std::uint64_t logs_stalled_ns_ = 0;
  std::unique_ptr<char[]> buffer_;
  bool discarding_ = false;
  bool again_posted_ = false;
  // Posted handlers may run after the destruction of this object.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace ivy
