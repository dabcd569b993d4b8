// SPDX-License-Identifier: Apache-2.0
// Makes a flight record of torch's shorter, as the text of its JSON, for hosts that have little
// room for each worker: the oldest collectives that are over go first. Pure; thread: any.
#pragma once

#include <cstddef>
#include <string>

namespace ivy {

// Returns a record of at most `limit` bytes. Empty: it cannot be made as short, or is no such JSON.
std::string trimmed_flight(const std::string& record, std::size_t limit);

}  // namespace ivy
