// SPDX-License-Identifier: Apache-2.0
// Another node as node 0 sees it: the connection to its ivyrun, and the state that outlasts a
// connection.
//
// From Begin on, messages of node 0 are counted and kept until the node acknowledges them, so that
// a new connection can continue where the last one broke. Thread: the loop's.
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
  // Drops kept messages: the node has acknowledged this many in total.
  void drop_heard(std::uint64_t messages);
  // The node has shown this many bytes of output in total. Returns the number of new ones.
  std::uint64_t take_shown(std::uint64_t total);
  bool is_new_signal(std::uint32_t number);
  // Moves the connection of this node to `other`, whose position in a list is known to handlers, by
  // swapping the two objects. Afterwards `other` represents this node, and this object can be
  // destroyed.
  void move_to(JoinedNode& other);

  int rank = 0;
  std::shared_ptr<DialBackStream> stream;
  CtlDecoder decoder;
  std::string name;           // Empty if the node has not identified itself yet.
  int host = -1;              // Its number in the job.
  std::uint64_t unshown = 0;  // Bytes of output sent to it and not shown yet.
  bool is_done = false;       // It was told that the job has ended, and will close the connection.
  std::string process;
  std::unique_ptr<boost::asio::steady_timer> absence;  // Running while it has no connection.

 private:
  std::deque<std::string> unheard_;
  std::uint64_t heard_ = 0;
  std::uint64_t shown_ = 0;
  std::uint32_t signals_ = 0;
};

}  // namespace ivy
