// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/diagnosis.h"

#include <cstdio>
#include <cstdlib>
#include <thread>

#include "comm/nccl/collect_rank_facts.h"
#include "comm/nccl/ras.h"
#include "proto/os/clock.h"
#include "proto/wire/ras.h"

namespace ivy::comm::nccl {
namespace {

// An error of NCCL often has a cause elsewhere. kVerdictTime is enough to notice a rank's death,
// kDifferenceTime to compare calls with ranks that publish theirs once a second.
constexpr std::chrono::milliseconds kVerdictTime{200};
constexpr std::chrono::milliseconds kDifferenceTime{1'300};
constexpr std::chrono::milliseconds kVerdictStep{5};
constexpr std::chrono::milliseconds kDifferenceStep{50};
// The part of NCCL's own message that is quoted; a failure's text has 512 bytes.
constexpr std::size_t kWordsMax = 160;
// The time limit of a query to the store that is not essential.
constexpr std::chrono::milliseconds kStoreLimit{250};

std::string last_error_text(const Functions& nccl, Handle handle) {
  std::string words = own_nccl_warning();
  const char* const last = nccl.get_last_error(handle);
  if (words.empty() && last != nullptr) words = last;
  return words.empty() ? "" : "; NCCL says: " + words.substr(0, kWordsMax);
}

}  // namespace

std::string time_text(std::chrono::nanoseconds time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", std::chrono::duration<double>(time).count());
  return text;
}

Failure Diagnosis::nccl_error(Status status, const std::string& what) const {
  std::string text = "NCCL of communicator " + options_.name + ": " + what + ": " +
                     library_->name_of_error(status);
  const char* const last = library_->functions().get_last_error(nullptr);
  if (last != nullptr && *last != '\0') text += ": " + std::string(last);
  // A failure of this kind, like a lost connection, is reported to all ranks.
  Failure failure = make_failure(FailureKind::kTransport, text);
  set_host(failure, options_.host);
  return failure;
}

Failure Diagnosis::timeout(const std::string& what, const std::string& why) const {
  return make_failure(FailureKind::kTimeout,
                      "NCCL of communicator " + options_.name + ": " + what + " timed out: " + why);
}

Failure Diagnosis::stuck_wait(const std::string& what, std::chrono::nanoseconds waited,
                              Handle handle) const {
  return timeout(what, "not finished after " + time_text(waited) +
                           "; NCCL_DEBUG=INFO shows how far it got" +
                           last_error_text(library_->functions(), handle));
}

Failure Diagnosis::late(const Enqueued& operation) const {
  Failure failure = timeout(describe(operation), "not finished on the device in time; " +
                                                     options_.owner->why_late(operation));
  failure.sequence = operation.number;
  set_operation(failure, comm_status::name_of(operation.shape.operation));
  return failure;
}

Failure Diagnosis::explained(const Failure& failure) const {
  const auto began = steady_now();
  const bool compares = options_.owner->compares_calls();
  const auto end = began + (compares ? kDifferenceTime : kVerdictTime);
  auto compared_at = began - kDifferenceStep;
  while (steady_now() < end) {
    if (const MaybeFailure found = options_.owner->find_failure()) return *found;
    if (compares && steady_now() - compared_at >= kDifferenceStep) {
      if (const MaybeFailure different = options_.owner->find_difference()) return *different;
      compared_at = steady_now();
    }
    std::this_thread::sleep_for(kVerdictStep);
  }
  return failure;
}

// Lets only the first rank that times out query the service, because each query goes to all
// processes. If the store does not answer, every rank does.
bool Diagnosis::may_query_ras() const {
  if (options_.store == nullptr) return true;
  const std::string own = std::to_string(options_.rank);
  const auto first =
      options_.store->compare_set(options_.key + "/ras", std::nullopt, own, kStoreLimit);
  return !first.ok() || first->first;
}

// A rank that may not query the service waits for the failure of the one that does, which includes
// the answer.
Failure Diagnosis::with_ras(const Failure& failure) const {
  const char* const address = std::getenv("NCCL_RAS_ADDR");
  const bool is_inside = failure.kind == FailureKind::kTimeout;
  if (!is_inside || address == nullptr || library_ == nullptr || library_->version() < kRasFrom) {
    return failure;
  }
  const auto end = steady_now() + kRasTimeout;
  std::string answer;
  if (!source_.find_failure() && may_query_ras()) {
    answer = query_ras(address, kRasTimeout, source_);
  } else {
    while (!source_.find_failure() && steady_now() < end) std::this_thread::sleep_for(kVerdictStep);
  }
  if (const MaybeFailure found = source_.find_failure()) return *found;
  if (answer.empty()) return failure;
  std::fputs(report_of_ras(answer, options_.name).c_str(), stderr);
  Failure detailed = failure;
  set_text(detailed, std::string(failure.text) +
                         "; NCCL's health service says: " + summary_of_ras(answer, kWordsMax));
  return detailed;
}

}  // namespace ivy::comm::nccl
