// SPDX-License-Identifier: Apache-2.0
// Sends ivyrun's standard input to one rank, or to all (--stdin). Never changes the flags of
// the descriptor, which is shared with other programs, and reads a terminal only while ivyrun is in
// the foreground, so that a background job is not suspended. Thread: the loop's.
#pragma once

#include <sys/types.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/job/core/job_context.h"

namespace ivy {

class StdinFeed {
 public:
  explicit StdinFeed(JobContext& job);
  // Call when the workers have been started: starts to read, or sends the end of the input if there
  // is nothing to read.
  void begin();
  // Call when a host may take more input.
  void resume();
  void stop();
  // Call at the end: seeks a file back to the first byte that no rank has read, so that the
  // commands after ivyrun find the rest: `while read x; do ivyrun ...; done < list`.
  void restore_offset(std::uint64_t taken_bytes);
  // True if the next command misses input that no rank has read, because a pipe cannot seek back.
  bool has_consumed_input(std::optional<std::uint64_t> taken_bytes) const {
    return is_pipe_ && read_bytes_ > 0 && taken_bytes == 0;
  }

 private:
  void start();
  // Sends bytes to the hosts in receivers_. Empty: the end of the input, which is sent once.
  void send(const std::string& bytes);
  // Returns how many bytes may be read now: as many as the slowest host takes.
  std::size_t window() const;
  void wait();
  void read_some();
  bool may_read_terminal() const;

  JobContext& job_;
  std::vector<std::size_t> receivers_;  // The hosts that get the input.
  boost::asio::posix::stream_descriptor descriptor_;
  boost::asio::steady_timer timer_;
  off_t file_start_ = -1;  // Offset of a file when ivyrun was started.
  std::uint64_t read_bytes_ = 0;
  bool is_pipe_ = false;
  bool is_terminal_ = false;
  bool is_file_ = false;
  bool waiting_ = false;
  bool ended_ = true;
};

}  // namespace ivy
