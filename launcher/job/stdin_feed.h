// SPDX-License-Identifier: Apache-2.0
// Standard input of ivyrun on its way to rank 0, or to all. Never changes the flags of the shared
// descriptor, and reads a terminal only while ivyrun is in the foreground, so that a background job
// is not stopped. Thread: the loop's.
#pragma once

#include <sys/types.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/job/job_context.h"

namespace ivy {

class StdinFeed {
 public:
  explicit StdinFeed(JobContext& job);
  // The workers have been started: reads for those that --stdin names. Sends them the end of input
  // if there is nothing to read.
  void begin();
  // There may be room again.
  void resume();
  void stop();
  // Seeks a file back to the first byte that no rank has read, so that the commands after ivyrun
  // find the rest: `while read x; do ivyrun ...; done < list`.
  void give_back(std::uint64_t taken_bytes);
  // True if the next command misses input that no rank has read: a pipe cannot be given back.
  bool has_eaten(std::optional<std::uint64_t> taken_bytes) const {
    return is_pipe_ && read_bytes_ > 0 && taken_bytes == 0;
  }

 private:
  void start();
  // Sends bytes to the hosts that take input. Empty: the end of the input, once.
  void send(const std::string& bytes);
  // Bytes that may be read now: as many as the slowest host takes.
  std::size_t room() const;
  void wait();
  void read_some();
  bool may_read_terminal() const;

  JobContext& job_;
  std::vector<std::size_t> takers_;  // Hosts that get the input.
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
