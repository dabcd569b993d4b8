// SPDX-License-Identifier: Apache-2.0
// The objects that an Output (output.h) calls: its owner, a follower, and the other ivyruns of
// torchrun mode. Thread: the loop's.
#pragma once

#include <cstdint>
#include <string_view>

namespace ivy {

struct Lane;

// The owner of an Output: class Job, a node of torchrun mode, `ivyctl logs`.
class OutputEvents {
 public:
  // Bytes of this host's output have been disposed of (written, or dropped by choice): the host may
  // send as many more. Never called from within worker_bytes().
  virtual void output_consumed(int host_index, std::uint64_t bytes) = 0;
  // The reader of standard output is gone (EPIPE). Once; never in the background.
  virtual void output_closed() = 0;

 protected:
  ~OutputEvents() = default;
};

// Receives all output and ivyrun's messages before they are shown: the job's socket, for ivyctl.
class OutputFollower {
 public:
  virtual void output(int rank, int stream, std::string_view bytes, bool end) = 0;
  virtual void message(std::string_view text) = 0;

 protected:
  ~OutputFollower() = default;
};

// torchrun mode: other ivyruns show and store the output of the ranks on their hosts, and receive
// the messages printed here.
class OutputElsewhere {
 public:
  virtual bool holds(int host_index) const = 0;
  // Reports the bytes to OutputEvents::output_consumed() once they are shown.
  virtual void show(const Lane& lane, std::string_view bytes, bool end) = 0;
  virtual void show_message(std::string_view text) = 0;

 protected:
  ~OutputElsewhere() = default;
};

}  // namespace ivy
