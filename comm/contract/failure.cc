// SPDX-License-Identifier: Apache-2.0
#include "comm/contract/failure.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <system_error>

#include "comm/contract/ivycomm.h"

namespace ivy::comm {
namespace {

template <std::size_t N>
void set_chars(char (&field)[N], std::string_view text) {
  const std::size_t length = std::min(text.size(), N - 1);
  std::memcpy(field, text.data(), length);
  std::memset(field + length, 0, N - length);
}

std::int32_t code_of(FailureKind kind) {
  switch (kind) {
    case FailureKind::kNone:
      return IVY_OK;
    case FailureKind::kRankDied:
    case FailureKind::kHostLost:
    case FailureKind::kTransport:
      return IVY_UNAVAILABLE;
    case FailureKind::kMismatch:
      return IVY_ABORTED;
    case FailureKind::kTimeout:
      return IVY_DEADLINE_EXCEEDED;
    case FailureKind::kAborted:
      return IVY_CANCELLED;
    case FailureKind::kOther:
      return IVY_INTERNAL;
  }
  return IVY_INTERNAL;
}

}  // namespace

void set_text(Failure& failure, std::string_view text) { set_chars(failure.text, text); }
void set_host(Failure& failure, std::string_view host) { set_chars(failure.host, host); }
void set_operation(Failure& failure, std::string_view operation) {
  set_chars(failure.operation, operation);
}

Failure make_failure(FailureKind kind, std::string_view text) {
  Failure failure;
  failure.kind = kind;
  failure.code = code_of(kind);
  set_text(failure, text);
  return failure;
}

Failure failure_of(const std::exception& problem) {
  const bool is_memory = dynamic_cast<const std::bad_alloc*>(&problem) != nullptr;
  const bool is_thread = dynamic_cast<const std::system_error*>(&problem) != nullptr;
  Failure failure = make_failure(FailureKind::kOther, is_memory ? "out of memory" : problem.what());
  if (is_memory || is_thread) failure.code = IVY_RESOURCE_EXHAUSTED;
  if (is_thread) {
    set_text(failure, std::string("cannot create a thread: ") + problem.what());
  }
  return failure;
}

}  // namespace ivy::comm
