// SPDX-License-Identifier: Apache-2.0
#include "comm/group/world/store_records.h"

#include <cstring>
#include <type_traits>

namespace ivy::comm {
namespace {

// Enough for all ranks that add an event at the same time.
constexpr std::uint64_t kEventAttempts = 64;
// How often compare_set is retried on a record that other ranks replace.
constexpr int kCompareAttempts = 4;
constexpr std::chrono::milliseconds kEventTime{2'000};

Failure difference(const std::string& communicator, const EnteredOperations& own,
                   const EnteredOperations& other, std::uint64_t sequence) {
  const auto called = [&](const EnteredOperations& by) {
    const OperationShape shape = by.shape(sequence);
    return "rank " + std::to_string(by.rank) + " calls " +
           describe_against(shape, (&by == &own ? other : own).shape(sequence));
  };
  Failure failure =
      make_failure(FailureKind::kMismatch,
                   "operation " + std::to_string(sequence) + " of communicator " + communicator +
                       " differs between ranks: " + called(own) + ", " + called(other));
  failure.rank = other.rank;
  failure.sequence = sequence;
  set_operation(failure, comm_status::name_of(own.shape(sequence).operation));
  return failure;
}

template <class Value>
std::string bytes_of(const Value& value) {
  static_assert(std::is_trivially_copyable_v<Value>);
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

template <class Value>
std::optional<Value> value_from(const std::optional<std::string>& bytes) {
  static_assert(std::is_trivially_copyable_v<Value>);
  if (!bytes || bytes->size() != sizeof(Value)) return std::nullopt;
  Value value;
  std::memcpy(&value, bytes->data(), sizeof value);
  return value;
}

}  // namespace

Failure StoreRecords::agree(const Failure& failure, const std::string& communicator) {
  const bool is_death =
      failure.kind == FailureKind::kRankDied || failure.kind == FailureKind::kHostLost;
  if (is_death && !stores_deaths_) return failure;
  const std::string own = bytes_of(failure);
  const std::optional<std::string> stored =
      store_.compare_set(key("failure/" + communicator), std::nullopt, own);
  // Other failures are found through closed connections, or by a query. They need no event, which
  // would also reach ranks that still finish the previous operation.
  if (stored == own && failure.kind == FailureKind::kAborted) add_event();
  return value_from<Failure>(stored).value_or(failure);
}

bool StoreRecords::end_wait_for_event(store::Client& client, std::uint64_t number) const {
  for (const std::uint64_t each : {number, number + 1}) {
    const Result<void> stored = client.set_once(key_of_event(each), "", kEventTime);
    if (!stored.ok() && stored.error().code != Code::kAlreadyExists) return false;
  }
  return true;
}

void StoreRecords::add_event() {
  if (notifier_ == nullptr) return;
  const std::string own = std::to_string(rank_) + "," + std::to_string(events_++);
  // A rank that an earlier event woke may have queried before this rank's failure was stored.
  const std::uint64_t next = notifier_->event_count();
  for (std::uint64_t number = next; number < next + kEventAttempts; ++number) {
    const std::optional<std::string> stored =
        store_.compare_set(key_of_event(number), std::nullopt, own);
    if (!stored || stored == own) return;
  }
}

MaybeFailure StoreRecords::find_agreed(const std::string& communicator) {
  const auto found = value_from<Failure>(store_.get(key("failure/" + communicator)));
  if (!found) return std::nullopt;
  return *found;
}

MaybeFailure StoreRecords::compare(const std::string& communicator, const EnteredOperations& own) {
  const std::string where = key("entered/" + communicator);
  std::optional<std::string> expected;
  for (int attempt = 0; attempt < kCompareAttempts; ++attempt) {
    const std::optional<std::string> stored = store_.compare_set(where, expected, bytes_of(own));
    const std::optional<EnteredOperations> other = value_from<EnteredOperations>(stored);
    if (!other) return std::nullopt;
    const std::optional<std::uint64_t> differs = first_difference(own, *other);
    if (differs) return difference(communicator, own, *other, *differs);
    if (other->sequence >= own.sequence) return std::nullopt;
    // An older record is replaced, unless another rank has done so concurrently.
    expected = stored;
  }
  return std::nullopt;
}

bool StoreRecords::write_wait(const std::string& communicator, std::int32_t rank,
                              const WaitRecord& record) {
  return store_.set(key_of_wait(communicator, rank), bytes_of(record));
}

std::optional<WaitRecord> StoreRecords::read_wait(const std::string& communicator,
                                                  std::int32_t rank) {
  std::optional<WaitRecord> record =
      value_from<WaitRecord>(store_.get(key_of_wait(communicator, rank)));
  if (record) record->because[sizeof record->because - 1] = '\0';
  return record;
}

}  // namespace ivy::comm
