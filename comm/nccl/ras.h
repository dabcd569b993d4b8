// SPDX-License-Identifier: Apache-2.0
// Asks NCCL's own health service (proto/wire/ras.h) when a rank times out inside NCCL. Thread: any.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

namespace ivy::comm::nccl {

inline constexpr int kRasFrom = 22400;
inline constexpr std::chrono::milliseconds kRasPatience{
    5'000};  // The time limit of a whole question.

// As RasQuestion::answer(); `is_in_vain` is asked all the while, and ends it with nothing.
std::string ask_ras(std::string_view address, std::chrono::milliseconds patience,
                    const std::function<bool()>& is_in_vain);

// As a worker's output: every line behind a name and not too many of them. Pure.
std::string report_of_ras(std::string_view answer, std::string_view communicator);

}  // namespace ivy::comm::nccl
