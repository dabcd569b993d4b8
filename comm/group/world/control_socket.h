// SPDX-License-Identifier: Apache-2.0
// The worker's end of the supervisor's control socket (proto/wire/control_wire.h): connects, sends
// requests, and receives answers and their descriptors. Thread: any; only one thread may receive at
// a time.
#pragma once

#include <chrono>
#include <string>

#include "proto/contract/status.h"
#include "proto/os/descriptor.h"
#include "proto/wire/control_wire.h"

namespace ivy::comm {

struct ControlAnswer {
  control::Reply reply;
  Descriptor descriptor;  // The descriptor received with the answer, or none.
};

// Returns a socket that forked children do not inherit; close it with not_inherited::close(). Fails
// with Unavailable if no supervisor listens at that path.
Result<int> connect_to_supervisor(const std::string& path);
// Returns false and sets errno if the request could not be sent.
bool send_request(int socket, const control::Request& request);
// Fails with Unavailable if no answer arrives in time, or if the supervisor has closed the socket.
Result<ControlAnswer> receive_answer(int socket, std::chrono::milliseconds at_most);
Error unexpected_answer(const ControlAnswer& answer);

}  // namespace ivy::comm
