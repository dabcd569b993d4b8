// SPDX-License-Identifier: Apache-2.0
// Bytes to or from a rank of another host: a connected, non-blocking socket as a stream. Takes
// ownership of the descriptor. Thread: one at a time per end.
#pragma once

#include <memory>

#include "comm/transports/byte_stream.h"

namespace ivy::comm {

std::unique_ptr<ByteSink> make_socket_sink(int socket);
std::unique_ptr<ByteSource> make_socket_source(int socket);

}  // namespace ivy::comm
