// SPDX-License-Identifier: Apache-2.0
// Records that the ranks of a world on several hosts exchange through the job's store while
// operations run: the reason why a communicator is broken, the operations that each rank has
// entered, and what it waits for.
//
// Thread: any. Lifetime: the store's client and the notifier outlive it.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "comm/contract/entered_operations.h"
#include "comm/contract/failure.h"
#include "comm/group/world/event_notifier.h"
#include "comm/join/fail_fast_store.h"
#include "comm/join/wait_graph.h"

namespace ivy::comm {

class StoreRecords {
 public:
  // `rank` is this process's in the job. `prefix` starts every key and is unique to this world.
  StoreRecords(std::uint32_t rank, std::string prefix) : rank_(rank), prefix_(std::move(prefix)) {}

  // `client` is null if there is no store. With a supervisor, all ranks learn of deaths from its
  // page, so deaths are not stored. Other failures are in the page, too, but only after the
  // connections that they close.
  void use(store::Client* client, bool has_supervisor) {
    store_.use(client);
    stores_deaths_ = !has_supervisor;
  }
  void set_prefix(std::string prefix) { prefix_ = std::move(prefix); }
  // Sets the notifier that passes events to this process's waits; add_event() starts at its count.
  void set_notifier(EventNotifier* notifier) { notifier_ = notifier; }
  std::string key(const std::string& name) const { return prefix_ + name; }
  std::string key_of_event(std::uint64_t number) const {
    return key("events/" + std::to_string(number));
  }
  FailFastStore& store() { return store_; }
  // Ends this rank's wait for that event, or for the next one if that wait has already started. The
  // client remains usable. Returns false if the store does not answer.
  bool end_wait_for_event(store::Client& client, std::uint64_t number) const;

  // Stores why a communicator that spans hosts is broken, unless another rank already has. Returns
  // the stored failure.
  Failure agree(const Failure& failure, const std::string& communicator);
  // Returns the stored failure, or nothing.
  MaybeFailure find_agreed(const std::string& communicator);
  // Stores the operations that this rank has entered, and compares them with those that another
  // rank has stored. The failure names that rank by its number in the communicator. Returns nothing
  // if they do not differ or nothing is stored.
  MaybeFailure compare(const std::string& communicator, const EnteredOperations& own);
  // Stores a rank's record of its wait. Returns false if the store does not answer.
  bool write_wait(const std::string& communicator, std::int32_t rank, const WaitRecord& record);
  // Returns nothing if that rank has stored no record, or if the store does not answer.
  std::optional<WaitRecord> read_wait(const std::string& communicator, std::int32_t rank);

 private:
  void add_event();
  std::string key_of_wait(const std::string& communicator, std::int32_t rank) const {
    return key("waits/" + communicator + "/" + std::to_string(rank));
  }

  const std::uint32_t rank_;
  std::string prefix_;
  bool stores_deaths_ = true;
  EventNotifier* notifier_ = nullptr;
  std::atomic<std::uint32_t> events_{0};  // Number of events that this rank has added.
  FailFastStore store_;
};

}  // namespace ivy::comm
