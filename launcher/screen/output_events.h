// SPDX-License-Identifier: Apache-2.0
// Interfaces through which an Output (output.h) calls its owner, a follower, and the other ivyruns
// of torchrun mode. Thread: the loop's.
#pragma once

#include <cstdint>
#include <string_view>

namespace ivy {

struct OutputSource;

// Implemented by the owner of an Output: class Job, a node of torchrun mode, `ivyctl logs`.
class OutputEvents {
 public:
  // Bytes of this host's output were written, or dropped by choice: the host may send as many more.
  // Never called from within worker_bytes().
  virtual void output_consumed(int host_index, std::uint64_t bytes) = 0;
  // The reader of standard output has exited (EPIPE). Called once at most, and never in the
  // background.
  virtual void output_closed() = 0;

 protected:
  ~OutputEvents() = default;
};

// Receives all output and ivyrun's messages before they are shown. Implemented by the job's socket,
// for ivyctl.
class OutputFollower {
 public:
  // Receives bytes of a rank's stream: 1, standard output, or 2, standard error. `end`: the stream
  // has closed.
  virtual void output(int rank, int stream, std::string_view bytes, bool end) = 0;
  // Receives lines that ivyrun has printed.
  virtual void message(std::string_view text) = 0;

 protected:
  ~OutputFollower() = default;
};

// The other ivyruns of torchrun mode: each shows and stores the output of the ranks on its own
// host, and prints the messages of node 0. Implemented by Joiner and NodeZero (launcher/join).
class RemoteOutput {
 public:
  // Returns true if another ivyrun shows the ranks of this host.
  virtual bool shows_elsewhere(int host_index) const = 0;
  // Sends output there; OutputEvents::output_consumed() is called once it is shown.
  virtual void show(const OutputSource& source, std::string_view bytes, bool end) = 0;
  // Sends a message of ivyrun to the nodes, which print it.
  virtual void show_message(std::string_view text) = 0;

 protected:
  ~RemoteOutput() = default;
};

}  // namespace ivy
