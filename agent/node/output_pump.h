// Moves what workers print from their pipes into the session, within the launcher's credit: a pipe
// is read only when there is room, so a launcher that does not read slows the workers down and
// nothing piles up here. Streams that have something take turns, one chunk each. Thread: the
// loop's. Lifetime: outlived by the session; streams live as long as the pump.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/node/rank_log.h"
#include "proto/link.h"

namespace ivy {

class OutputPump {
 public:
  // Largest piece read at once: a whole pipe of Linux's default size.
  static constexpr std::size_t kChunkBytes = 64u << 10;
  // With less credit than this no pipe is read: tiny frames would cost more than they carry.
  static constexpr std::size_t kLeastRoomBytes = 4096;

  struct Handlers {
    std::function<void()> queued;                        // The session has new frames.
    std::function<void(const std::string&)> log_failed;  // A rank's log file is given up.
  };

  struct StreamName {
    std::uint32_t generation = 0;
    std::uint32_t rank = 0;
    std::uint8_t stream = 1;
  };

  // What was given to the session so far.
  struct Progress {
    StreamName name;
    std::uint64_t bytes = 0;
    bool ended = false;
  };

  using StreamId = std::size_t;

  OutputPump(boost::asio::io_context& loop, link::Session& session, Handlers handlers);
  ~OutputPump();

  // Takes over a non-blocking descriptor. `ended` is called once, when the end of the stream has
  // been queued, never from inside add().
  StreamId add(int fd, const StreamName& name, std::optional<RankLog> log,
               std::function<void()> ended);
  // Credit may have come: reads what it allows.
  void pump();
  // The worker of this stream has ended and its drain time is over: what the pipe holds now is
  // still read, then the stream ends, whoever else holds it open.
  void cut(StreamId id);
  std::vector<Progress> progress() const;
  // Nobody will take output any more: read it and throw it away, so that no worker blocks on it.
  void discard();

 private:
  struct Stream;
  void wait(Stream& stream);
  bool has_room() const;
  void read_once(Stream& stream);
  void forward(Stream& stream, std::string_view bytes);
  void end(Stream& stream);

  boost::asio::io_context& loop_;
  link::Session& session_;
  Handlers handlers_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::deque<Stream*> ready_;  // Each stream at most once.
  std::unique_ptr<char[]> buffer_;
  bool discarding_ = false;
  bool again_posted_ = false;
};

}  // namespace ivy
