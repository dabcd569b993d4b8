// SPDX-License-Identifier: Apache-2.0
// Another node of torchrun mode, as node 0 sees it: the connection to its ivyrun, and the state
// that is kept when the connection breaks and the node dials again.
//
// Once Begin has started the job, no message may be lost with a connection:
//  - *heard*: a node counts the messages that it has received and reports the number. Node 0 keeps
//    the messages after it (`unheard_`) and sends them again on the next connection.
//  - *shown*: a node reports how many bytes of its ranks' output it has written to its console and
//    files. Node 0 then gives the node's host credit for as many new bytes.
//
// Thread: the loop's.
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
  // Sends a message if there is a connection. From Begin on, also keeps it until the node has heard
  // it.
  void say(const join::HeadSays& message);
  // Drops the kept copies of messages. messages: how many the node has received since Begin.
  void drop_heard(std::uint64_t messages);
  // Notes that the node has shown `total` bytes of output since Begin. Returns how many are new.
  std::uint64_t take_shown(std::uint64_t total);
  // Notes the number of a signal. Returns false if the node has sent this signal before: a signal
  // may be sent again after a reconnection.
  bool is_new_signal(std::uint32_t number);
  // Moves the state of this node to `other`, the object of its new connection, and sends the
  // unheard messages there. The handlers of that connection know its object by the position in a
  // list, so the state moves and not the connection. Afterwards `other` is the node, and this
  // object, with the broken connection, can be destroyed.
  void move_to(JoinedNode& other);

  int rank = 0;
  std::shared_ptr<DialBackStream> stream;  // The connection.
  CtlDecoder decoder;                      // Splits its bytes into messages.
  std::string name;           // Its name in messages; empty until the node has sent Join.
  int host = -1;              // Its host's number in the job; -1 before Begin.
  std::uint64_t unshown = 0;  // Bytes of output that were sent to it and that it has not shown.
  bool is_done = false;       // It was sent End, and will close the connection.
  std::string process;  // As in JoiningNode: tells its ivyrun from another one of the same rank.
  // Runs while the node has no connection, and ends the wait for a new one.
  std::unique_ptr<boost::asio::steady_timer> absence;

 private:
  std::deque<std::string> unheard_;  // Encoded messages that it has not heard, in their order.
  std::uint64_t heard_ = 0;          // Messages that it has heard since Begin.
  std::uint64_t shown_ = 0;          // Bytes that it has shown since Begin.
  std::uint32_t signals_ = 0;        // Number of the last signal that it has passed on.
};

}  // namespace ivy
