// SPDX-License-Identifier: Apache-2.0
// Reads a job's token from its file. Plain POSIX. Thread: any.
#pragma once

#include <cstddef>
#include <string>

#include "proto/contract/status.h"

namespace ivy::store {

inline constexpr std::size_t kTokenBytes = 32;

// Fails with NotFound if the file cannot be opened, and with InvalidArgument if it does not hold 32
// bytes.
Result<std::string> read_token(const std::string& path);

}  // namespace ivy::store
