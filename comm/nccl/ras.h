// What NCCL's own health service (RAS, since 2.24) knows of a job that does not go on. Every
// process that has made a communicator answers at NCCL_RAS_ADDR, by a thread of NCCL's which is not
// the one that hangs, for all processes of the job: which of them are silent, which ranks are how
// far. The protocol is lines of text; its server hangs up behind the answer.
//
// Thread: any.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace ivy::comm::nccl {

inline constexpr int kRasFrom = 22400;
// Of a whole question. A process that is stopped costs its first second: all processes of a host
// listen at the one address, and the kernel chooses between them.
inline constexpr std::chrono::milliseconds kRasPatience{5'000};
inline constexpr std::chrono::milliseconds kRasFirstWord{1'000};
inline constexpr std::size_t kRasBytesMax = 64 << 10;

// The answer to "verbose status", printable characters and newlines only; where the time or
// kRasBytesMax is over, what has come until then. Empty: nobody listens there, it is something
// else, or `is_in_vain`, which is asked all the while, says so.
// `address`: "127.1.2.3:28028", "[::1]:28028" or "localhost:28028"; other names are not looked up.
std::string ask_ras(std::string_view address, std::chrono::milliseconds patience,
                    const std::function<bool()>& is_in_vain);

// Its errors and warnings in one line; "no error" where it has none, "nothing in time" where it did
// not come to them. Pure.
std::string summary_of_ras(std::string_view answer, std::size_t longest);

// As a worker's output: every line behind a name and not too many of them. Pure.
std::string report_of_ras(std::string_view answer, std::string_view communicator);

}  // namespace ivy::comm::nccl
