// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl_profiler/own_page.h"

#include <sys/mman.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <variant>

#include "comm/group/world/control_socket.h"
#include "proto/os/not_inherited.h"

namespace ivy::nccl_profiler {
namespace {

constexpr std::chrono::milliseconds kTimeout{1'000};

std::uint32_t number_of(const char* name, std::uint32_t missing) {
  const char* const text = std::getenv(name);
  if (text == nullptr) return missing;
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), number);
  return error == std::errc() && *end == '\0' ? number : missing;
}

Result<comm_status::StatusPage> map_page(const comm::ControlAnswer& answer) {
  const auto* const observed = std::get_if<control::Observed>(&answer.reply);
  if (observed == nullptr || !answer.descriptor) return comm::unexpected_answer(answer);
  void* const memory = mmap(nullptr, observed->bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                            answer.descriptor.get(), 0);
  if (memory == MAP_FAILED)
    return errno_error(Code::kResourceExhausted, "map the status page", errno);
  Result<comm_status::StatusPage> page = comm_status::StatusPage::open(memory, observed->bytes);
  if (!page.ok()) munmap(memory, observed->bytes);
  return page;
}

}  // namespace

Result<comm_status::StatusPage> request_page() {
  const char* const path = std::getenv("IVY_CONTROL");
  const control::Observe observe{control::kWireVersion, number_of("IVY_RANK", control::kNoRank),
                                 number_of("IVY_GENERATION", 0)};
  if (path == nullptr || observe.rank == control::kNoRank)
    return Error{Code::kFailedPrecondition, "IVY_CONTROL or IVY_RANK is not set"};
  const int socket = IVY_TRY(comm::connect_to_supervisor(path));
  const bool is_sent = comm::send_request(socket, observe);
  const Result<comm::ControlAnswer> answer =
      is_sent ? comm::receive_answer(socket, kTimeout)
              : errno_error(Code::kUnavailable, "request a page from the supervisor", errno);
  not_inherited::close(socket);
  if (!answer.ok()) return answer.error();
  return map_page(*answer);
}

}  // namespace ivy::nccl_profiler
