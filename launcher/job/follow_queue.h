// SPDX-License-Identifier: Apache-2.0
// Frames to be sent to one follower of a job. A follower that does not read loses whole lines,
// which are counted, and never holds the job up. Pure; thread: one at a time.
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
  // Output is dropped while more than this waits; a short stutter of a terminal fits in it.
  static constexpr std::size_t kLimitBytes = 1u << 20;
  // Messages of ivyrun itself may be queued beyond kLimitBytes, up to this.
  static constexpr std::size_t kMessageLimitBytes = 2 * kLimitBytes;

  // Bytes of one stream (1 or 2) of one rank; end: the stream has ended.
  void output(int rank, int stream, std::string_view bytes, bool end);
  // Every other kind of reply.
  void reply(const ctl::Reply& reply);

  bool empty() const { return frames_.empty(); }
  std::size_t bytes() const { return bytes_; }
  // The next frames, encoded: at least one when there is any, stopping past max_bytes.
  std::string take(std::size_t max_bytes);

 private:
  struct Lane {
    bool is_dropping = false;
    bool is_in_line = false;    // The last bytes queued did not end with a newline.
    bool was_cut = false;       // The first dropped byte was in the middle of a queued line.
    bool lost_in_line = false;  // The last bytes dropped did not end with a newline.
    std::uint64_t lost_lines = 0;
  };
  std::string_view keep_some(Lane& lane, std::string_view bytes);
  void lose(Lane& lane, std::string_view bytes);
  void say_gap(int rank, int stream, Lane& lane);
  void push(std::string frame);

  std::deque<std::string> frames_;
  std::size_t bytes_ = 0;
  std::map<std::pair<int, int>, Lane> lanes_;
};

}  // namespace ivy
