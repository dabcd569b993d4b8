// SPDX-License-Identifier: Apache-2.0
// Replaces comm/group/protocol_identity.cc: a library that differs only in this number.
#include "comm/contract/protocol.h"

namespace ivy::comm {

std::uint64_t protocol_identity() { return 0x0123456789abcdefU; }

}  // namespace ivy::comm
