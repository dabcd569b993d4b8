// Which operation of a communicator moves bytes at the moment: every step of it carries this along,
// so that peers can compare what they are in and messages can name it.
#pragma once

#include <cstdint>

#include "comm/contract/fingerprint.h"
#include "comm/transports/deadline.h"

namespace ivy::comm {

struct OperationCall {
  OperationShape shape;
  std::uint64_t sequence = 0;  // The communicator's number of the operation.
  Deadline& deadline;
};

}  // namespace ivy::comm
