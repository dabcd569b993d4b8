// SPDX-License-Identifier: Apache-2.0
// Another node of torchrun mode, as node 0 sees it: the connection to its ivyrun, and the state
// that is kept when the connection breaks and the node dials again.
//
// Once Begin has started the job, no message may be lost with a connection:
//  - *acknowledged*: a node reports how many messages it has received. Node 0 keeps the messages
//    after it (`unacknowledged_`) and sends them again on the next connection.
//  - *consumed*: a node reports how many bytes of its ranks' output it has written to its console
//    and files. Node 0 then gives the node's host credit for as many new bytes.
//
// Thread: the loop's.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "launcher/job/control/ctl_wire.h"
#include "launcher/links/srun/dial_back_stream.h"
#include "proto/wire/join.pb.h"

namespace ivy {

struct JoinedNode {
  // Sends a message if there is a connection. From Begin on, also keeps it until the node has
  // acknowledged it.
  void send(const join::NodeZeroMessage& message);
  // Drops the kept copies of messages. messages: how many the node has received since Begin.
  void drop_acknowledged(std::uint64_t messages);
  // Notes that the node has consumed `total` bytes of output since Begin. Returns how many are new.
  std::uint64_t take_consumed(std::uint64_t total);
  // Notes the number of a signal. Returns false if the node has sent this signal before: a signal
  // may be sent again after a reconnection.
  bool is_new_signal(std::uint32_t number);
  // Moves the state of this node to `other`, the object of its new connection, and sends the
  // unacknowledged messages there. The events of that connection go to its object, so the state
  // moves and not the connection. Afterwards `other` is the node, and this object, with the broken
  // connection, can be destroyed.
  void move_to(JoinedNode& other);

  int rank = 0;
  std::shared_ptr<DialBackStream> stream;  // The connection.
  CtlDecoder decoder;                      // Splits its bytes into messages.
  std::string name;              // Its name in messages; empty until the node has sent Join.
  int host = -1;                 // Its host's number in the job; -1 before Begin.
  std::uint64_t unconsumed = 0;  // Bytes of output sent to it that it has not consumed.
  bool is_done = false;          // It was sent End, and will close the connection.
  std::string process;  // As in JoiningNode: tells its ivyrun from another one of the same rank.
  // Runs while the node has no connection, and ends the wait for a new one.
  std::unique_ptr<boost::asio::steady_timer> absence;

 private:
  std::deque<std::string> unacknowledged_;  // Encoded messages without acknowledgement, in order.
  std::uint64_t acknowledged_ = 0;          // Messages that it has acknowledged since Begin.
  std::uint64_t consumed_ = 0;              // Bytes that it has consumed since Begin.
  std::uint32_t signals_ = 0;               // Number of the last signal that it has passed on.
};

}  // namespace ivy
