// SPDX-License-Identifier: Apache-2.0
// One other node as node 0 knows it: the connection of its ivyrun, and what outlasts a connection.
//
// From Begin on what node 0 says is counted and kept until the node says that it has heard it, so
// that another connection goes on where the last one broke. Thread: the loop's.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "launcher/job/ctl_wire.h"
#include "launcher/links/srun/dial_back_stream.h"
#include "proto/wire/join.pb.h"

namespace ivy {

struct JoinedNode {
  void say(const join::HeadSays& message);
  // The node has heard that many messages, in all.
  void drop_heard(std::uint64_t messages);
  // The node has shown that many bytes of output, in all. Returns how many of them are new.
  std::uint64_t take_shown(std::uint64_t total);
  bool is_new_signal(std::uint32_t number);
  // Takes over the connection of `other`, which is in `other`'s place in a list that handlers know:
  // so the two change places. Afterwards `other` is this node, and this one can be thrown away.
  void move_to(JoinedNode& other);

  int rank = 0;
  std::shared_ptr<DialBackStream> stream;
  CtlDecoder decoder;
  std::string name;           // Empty: it has not said yet who it is.
  int host = -1;              // Its number in the job.
  std::uint64_t unshown = 0;  // Bytes of output that it has been given.
  bool is_done = false;       // It has been told that it is over, and hangs up when it has read it.
  std::string process;
  std::unique_ptr<boost::asio::steady_timer> absence;  // Runs while it has no connection.

 private:
  std::deque<std::string> unheard_;
  std::uint64_t heard_ = 0;
  std::uint64_t shown_ = 0;
  std::uint32_t signals_ = 0;
};

}  // namespace ivy
