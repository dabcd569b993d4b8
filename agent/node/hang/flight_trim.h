// SPDX-License-Identifier: Apache-2.0
// Shortens the JSON text of a torch flight record for hosts with little space per worker, by
// removing the oldest finished collectives first. Pure; thread: any.
#pragma once

#include <cstddef>
#include <string>

namespace ivy {

// Returns a record of at most `limit` bytes; empty if that is impossible or the text is not such
// JSON.
std::string trimmed_flight(const std::string& record, std::size_t limit);

}  // namespace ivy
