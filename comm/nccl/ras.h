// SPDX-License-Identifier: Apache-2.0
// Queries NCCL's health service (proto/wire/ras.h) when a rank times out inside NCCL. Thread: any.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "comm/nccl/abandonable_call.h"

namespace ivy::comm::nccl {

inline constexpr int kRasFrom = 22400;  // The first version of NCCL that has the service.
inline constexpr std::chrono::milliseconds kRasTimeout{5'000};  // For a whole query.

// Returns RasQuestion::answer(), or an empty text as soon as there is trouble.
std::string query_ras(std::string_view address, std::chrono::milliseconds timeout,
                      FailureSource& source);

// Formats the answer for the worker's standard error, with a limited number of lines. Pure.
std::string report_of_ras(std::string_view answer, std::string_view communicator);

}  // namespace ivy::comm::nccl
