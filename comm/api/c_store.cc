// SPDX-License-Identifier: Apache-2.0
// The job's store in the C interface.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/api/c_interface.h"
#include "comm/contract/ivycomm.h"

using ivy::Result;
using namespace ivy::comm;               // NOLINT: the C interface of that namespace.
using namespace ivy::comm::c_interface;  // NOLINT: likewise.

namespace {

// Calls body(client) if there is a store and none of `pointers` is NULL.
template <class Body>
int with_store(const ivy_comm* comm, std::initializer_list<const void*> pointers,
               const Body& body) {
  return guarded([&]() -> int {
    IVY_CHECKED(check_comm(comm));
    ivy::store::Client* const client = comm->communicator->job().store();
    if (client == nullptr) return fail(IVY_FAILED_PRECONDITION, "a world of one has no store");
    for (const void* const pointer : pointers) {
      if (pointer == nullptr) return invalid("a pointer is NULL");
    }
    return body(*client);
  });
}

int check_value(const ivy_bytes& value, const char* name) {
  if (value.data != nullptr || value.bytes == 0) return IVY_OK;
  return invalid(std::string(name) + " is NULL");
}

std::string_view view(const ivy_bytes& value) {
  return {static_cast<const char*>(value.data), value.bytes};
}

template <class Answer>
int give(const Result<Answer>& answer, Answer* to) {
  if (!answer.ok()) return fail(answer.error());
  if (to != nullptr) *to = *answer;
  return IVY_OK;
}

int done(const Result<void>& answer) { return answer.ok() ? IVY_OK : fail(answer.error()); }

struct Free {
  void operator()(void* memory) const noexcept { std::free(memory); }
};
using Allocated = std::unique_ptr<void, Free>;

Allocated copy_of(std::string_view bytes) {
  Allocated copy(std::malloc(std::max<std::size_t>(1, bytes.size())));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy.get(), bytes.data(), bytes.size());
  return copy;
}

int give_bytes(const Result<std::string>& found, ivy_bytes* value) {
  if (!found.ok()) return fail(found.error());
  *value = {copy_of(*found).release(), found->size()};
  return IVY_OK;
}

int take_keys(const char* const* keys, std::size_t count, std::vector<std::string>& names) {
  if (keys == nullptr && count != 0) return invalid("keys is NULL");
  for (std::size_t i = 0; i < count; ++i) {
    if (keys[i] == nullptr) return invalid("keys[" + std::to_string(i) + "] is NULL");
    names.emplace_back(keys[i]);
  }
  return IVY_OK;
}

ivy::store::Client::Milliseconds wait_of(std::int64_t timeout_ms) {
  return std::chrono::duration_cast<ivy::store::Client::Milliseconds>(timeout_of(timeout_ms));
}

}  // namespace

extern "C" {

int ivy_store_set(ivy_comm* comm, const char* key, const void* value, size_t value_bytes) {
  return with_store(comm, {key}, [&](ivy::store::Client& store) -> int {
    const ivy_bytes given = {const_cast<void*>(value), value_bytes};
    IVY_CHECKED(check_value(given, "value"));
    return done(store.set(key, view(given)));
  });
}

int ivy_store_get(ivy_comm* comm, const char* key, int64_t timeout_ms, void** value,
                  size_t* value_bytes) {
  return with_store(comm, {key, value, value_bytes}, [&](ivy::store::Client& store) -> int {
    ivy_bytes found = {};
    IVY_CHECKED(give_bytes(store.wait_get(key, wait_of(timeout_ms)), &found));
    *value = found.data;
    *value_bytes = found.bytes;
    return IVY_OK;
  });
}

int ivy_store_add(ivy_comm* comm, const char* key, int64_t delta, int64_t* value) {
  return with_store(comm, {key, value},
                    [&](ivy::store::Client& store) { return give(store.add(key, delta), value); });
}

int ivy_store_remove(ivy_comm* comm, const char* key, int* existed) {
  return with_store(comm, {key}, [&](ivy::store::Client& store) -> int {
    const Result<bool> removed = store.remove(key);
    if (removed.ok() && existed != nullptr) *existed = *removed ? 1 : 0;
    return give<bool>(removed, nullptr);
  });
}

int ivy_store_compare_set(ivy_comm* comm, const char* key, ivy_swap* swap) {
  return with_store(comm, {key, swap}, [&](ivy::store::Client& store) -> int {
    IVY_CHECKED(check_value(swap->desired, "desired"));
    std::optional<std::string> before;
    if (swap->expected != nullptr) before.emplace(view(*swap->expected));
    const auto answer = store.compare_set(key, before, view(swap->desired));
    if (!answer.ok()) return fail(answer.error());
    const auto& [was_stored, current] = *answer;
    swap->current = {};
    if (current) swap->current = {copy_of(*current).release(), current->size()};
    swap->stored = was_stored ? 1 : 0;
    return IVY_OK;
  });
}

int ivy_store_append(ivy_comm* comm, const char* key, ivy_bytes value, uint64_t* length) {
  return with_store(comm, {key}, [&](ivy::store::Client& store) -> int {
    IVY_CHECKED(check_value(value, "value"));
    return give(store.append(key, view(value)), length);
  });
}

int ivy_store_wait(ivy_comm* comm, const char* const* keys, size_t key_count, int64_t timeout_ms) {
  return with_store(comm, {}, [&](ivy::store::Client& store) -> int {
    std::vector<std::string> names;
    IVY_CHECKED(take_keys(keys, key_count, names));
    if (names.empty()) return IVY_OK;
    return done(store.wait(names, wait_of(timeout_ms)));
  });
}

int ivy_store_check(ivy_comm* comm, const char* const* keys, size_t key_count, int* all_exist) {
  return with_store(comm, {all_exist}, [&](ivy::store::Client& store) -> int {
    std::vector<std::string> names;
    IVY_CHECKED(take_keys(keys, key_count, names));
    const Result<bool> found = names.empty() ? Result<bool>(true) : store.check(names);
    if (found.ok()) *all_exist = *found ? 1 : 0;
    return give<bool>(found, nullptr);
  });
}

int ivy_store_multi_get(ivy_comm* comm, const char* const* keys, size_t key_count,
                        ivy_bytes* values) {
  return with_store(comm, {values}, [&](ivy::store::Client& store) -> int {
    std::vector<std::string> names;
    IVY_CHECKED(take_keys(keys, key_count, names));
    if (names.empty()) return IVY_OK;
    const Result<std::vector<std::string>> found = store.multi_get(names);
    if (!found.ok()) return fail(found.error());
    std::vector<Allocated> copies;
    for (const std::string& each : *found) copies.push_back(copy_of(each));
    for (std::size_t i = 0; i < copies.size(); ++i) {
      values[i] = {copies[i].release(), (*found)[i].size()};
    }
    return IVY_OK;
  });
}

int ivy_store_multi_set(ivy_comm* comm, const char* const* keys, size_t key_count,
                        const ivy_bytes* values) {
  return with_store(comm, {values}, [&](ivy::store::Client& store) -> int {
    std::vector<std::string> names;
    IVY_CHECKED(take_keys(keys, key_count, names));
    if (names.empty()) return IVY_OK;
    ivy::store::Client::Entries entries;
    for (std::size_t i = 0; i < key_count; ++i) {
      IVY_CHECKED(check_value(values[i], "a value"));
      entries.emplace_back(std::move(names[i]), view(values[i]));
    }
    return done(store.multi_set(entries));
  });
}

int ivy_store_push(ivy_comm* comm, const char* queue, ivy_bytes value, uint64_t* length) {
  return with_store(comm, {queue}, [&](ivy::store::Client& store) -> int {
    IVY_CHECKED(check_value(value, "value"));
    return give(store.push(queue, view(value)), length);
  });
}

int ivy_store_pop(ivy_comm* comm, const char* queue, int64_t timeout_ms, ivy_bytes* value) {
  return with_store(comm, {queue, value}, [&](ivy::store::Client& store) -> int {
    return give_bytes(store.pop(queue, wait_of(timeout_ms)), value);
  });
}

int ivy_store_queue_length(ivy_comm* comm, const char* queue, uint64_t* length) {
  return with_store(comm, {queue, length}, [&](ivy::store::Client& store) -> int {
    return give(store.queue_length(queue), length);
  });
}

int ivy_store_list(ivy_comm* comm, const char* prefix, ivy_bytes* names) {
  return with_store(comm, {prefix, names}, [&](ivy::store::Client& store) -> int {
    const Result<std::vector<std::string>> found = store.list(prefix);
    if (!found.ok()) return fail(found.error());
    std::string joined;
    for (const std::string& name : *found) joined.append(name).push_back('\0');
    return give_bytes(joined, names);
  });
}

int ivy_store_count(ivy_comm* comm, const char* prefix, uint64_t* keys) {
  return with_store(comm, {prefix, keys},
                    [&](ivy::store::Client& store) { return give(store.count(prefix), keys); });
}

int ivy_store_barrier(ivy_comm* comm, const char* name, ivy_store_meeting* meeting,
                      int64_t timeout_ms) {
  return with_store(comm, {name, meeting}, [&](ivy::store::Client& store) -> int {
    if (meeting->arrival == 0) meeting->arrival = store.new_arrival();
    return give(
        store.barrier(name, meeting->size, meeting->member, wait_of(timeout_ms), meeting->arrival),
        &meeting->round);
  });
}

int ivy_store_why(ivy_comm* comm, ivy_bytes* text) {
  return with_store(comm, {text},
                    [&](ivy::store::Client& store) { return give_bytes(store.why(), text); });
}

int ivy_store_watch(ivy_comm* comm, const char* prefix, uint32_t* watch) {
  return with_store(comm, {prefix, watch},
                    [&](ivy::store::Client& store) { return give(store.watch(prefix), watch); });
}

int ivy_store_next_change(ivy_comm* comm, uint32_t watch, int64_t timeout_ms,
                          ivy_store_change* change) {
  return with_store(comm, {change}, [&](ivy::store::Client& store) -> int {
    const Result<ivy::store::Changed> received = store.next_change(watch, wait_of(timeout_ms));
    if (!received.ok()) return fail(received.error());
    *change = {static_cast<std::int32_t>(received->kind), {}, {}};
    if (received->kind == ivy::store::Changed::Kind::kOverflow) return IVY_OK;
    Allocated key = copy_of(received->key);
    if (received->kind == ivy::store::Changed::Kind::kSet)
      change->value = {copy_of(received->value).release(), received->value.size()};
    change->key = {key.release(), received->key.size()};
    return IVY_OK;
  });
}

int ivy_store_end_watch(ivy_comm* comm, uint32_t watch) {
  return with_store(comm, {}, [&](ivy::store::Client& store) -> int {
    store.end_watch(watch);
    return IVY_OK;
  });
}

void ivy_bytes_free(void* value) { std::free(value); }

}  // extern "C"
