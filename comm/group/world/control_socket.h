// SPDX-License-Identifier: Apache-2.0
// One end of the supervisor's control socket (proto/wire/control_wire.h): connects, sends requests,
// reads answers and the descriptors that come with them. Thread: any; one answer is read at a time.
#pragma once

#include <chrono>
#include <string>

#include "proto/contract/status.h"
#include "proto/os/descriptor.h"
#include "proto/wire/control_wire.h"

namespace ivy::comm {

struct ControlAnswer {
  control::Reply reply;
  Descriptor descriptor;  // The descriptor received with it, or none.
};

// A socket that forked children do not inherit; close it with not_inherited::close(). Unavailable:
// no supervisor listens at that path.
Result<int> connect_to_supervisor(const std::string& path);
// False if it could not be sent: errno says why.
bool send_request(int socket, const control::Request& request);
// Unavailable: no answer came in time, or the supervisor has closed the socket.
Result<ControlAnswer> receive_answer(int socket, std::chrono::milliseconds at_most);
// Returns the error for an answer of an unexpected kind.
Error unexpected_answer(const ControlAnswer& answer);

}  // namespace ivy::comm
