// SPDX-License-Identifier: Apache-2.0
// Frames that wait to be sent to one follower of a job (an ivyctl). If the follower reads too
// slowly, whole lines are dropped and their number is sent to it, so it never delays the job. Pure.
// Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "proto/wire/ctl.pb.h"

namespace ivy {

class FollowQueue {
 public:
  // Output is dropped while more than this is queued. A short pause of a terminal does not fill the
  // queue.
  static constexpr std::size_t kLimitBytes = 1u << 20;
  // Limit of the queue for messages of ivyrun, which may exceed kLimitBytes.
  static constexpr std::size_t kMessageLimitBytes = 2 * kLimitBytes;

  // Queues bytes of one stream (1 or 2) of one rank. end: the stream has ended.
  void output(int rank, int stream, std::string_view bytes, bool end);
  // Queues any other kind of reply.
  void reply(const ctl::Reply& reply);

  bool empty() const { return frames_.empty(); }
  std::size_t bytes() const { return bytes_; }
  // Returns the next frames, encoded: at least one if there is one, and no more after max_bytes.
  std::string take(std::size_t max_bytes);

 private:
  // One stream of one rank.
  struct StreamState {
    bool is_dropping = false;
    bool is_in_line = false;  // The last bytes that were queued did not end with a newline.
    // The first byte that was dropped belonged to a line that is partly queued.
    bool was_cut = false;
    bool lost_in_line = false;  // The last bytes that were dropped did not end with a newline.
    std::uint64_t lost_lines = 0;
  };
  std::string_view keep_some(StreamState& state, std::string_view bytes);
  void lose(StreamState& state, std::string_view bytes);
  void push_gap(int rank, int stream, StreamState& state);
  void push(std::string frame);

  std::deque<std::string> frames_;
  std::size_t bytes_ = 0;
  std::map<std::pair<int, int>, StreamState> states_;
};

}  // namespace ivy
