// SPDX-License-Identifier: Apache-2.0
// The operation of a communicator that currently moves bytes. It is passed to every step, so that
// peers can compare their operations and messages can name it.
#pragma once

#include <cstdint>

#include "comm/contract/fingerprint.h"
#include "comm/transports/liveness/deadline.h"

namespace ivy::comm {

struct OperationCall {
  OperationShape shape;
  std::uint64_t sequence = 0;  // The communicator's number of the operation.
  Deadline& deadline;
};

}  // namespace ivy::comm
