// SPDX-License-Identifier: Apache-2.0
// C++20 interface of libivycomm: ivycomm.h with destructors, exceptions and deduced element types.
// Header only; link libivycomm (CMake: ivy::comm, pkg-config: ivycomm).
//
//   ivycomm::World world;                            // A world of one without a launcher.
//   world.all_reduce(x);                             // In place; x is a std::vector<float>, say.
//   world.start().all_reduce(x).wait();              // The library uses x until wait() returns.
//   world.within(5s).broadcast(x, 0);                // With a timeout for this call.
//
// ivycomm.h defines the operations and their rules for ranks and threads. Failures are thrown as
// Error. Counts are numbers of elements, and a buffer is anything that std::span can be made of.
// The operations are declared in ivycomm_collectives.hpp, ivycomm_uneven.hpp and
// ivycomm_messages.hpp.
#pragma once

#include <ivycomm.h>

#include <chrono>
#include <cstdint>
#include <ivycomm_messages.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace ivycomm {

// The asynchronous operations: each returns a Work immediately.
using Started = Messages<Work>;

// A communicator's handle, with call options. Does not own the handle; World and Group do.
class Communicator : public Messages<void> {
 public:
  using Messages<void>::Messages;

  int local_rank() const { return ivy_comm_local_rank(comm_); }
  int local_size() const { return ivy_comm_local_size(comm_); }
  int node_rank() const { return ivy_comm_node_rank(comm_); }
  int node_count() const { return ivy_comm_node_count(comm_); }
  // Returns -1 if there is no such rank.
  int world_rank(int rank) const { return ivy_comm_world_rank(comm_, rank); }
  std::string_view name() const { return ivy_comm_name(comm_); }
  // Returns the source that assigned this rank: "torchrun (RANK=1, WORLD_SIZE=4)".
  std::string_view source() const { return ivy_comm_source(comm_); }
  void abort(const std::string& reason) { check(ivy_comm_abort(comm_, reason.c_str())); }

  // Each of these returns the same communicator with other call options.
  Started start() const { return Started(comm_, how_); }
  Communicator within(std::chrono::milliseconds timeout) const {
    Communicator other(comm_, how_);
    other.how_.timeout_ms = timeout.count();
    return other;
  }
  // Sets the factor by which IVY_PREMUL_SUM multiplies this rank's input.
  Communicator scaled(double factor) const {
    Communicator other(comm_, how_);
    other.how_.factor = factor;
    return other;
  }
  // For device memory: `stream` is a cudaStream_t or hipStream_t; null is the default stream.
  // `flags`: IVY_ENQUEUE, IVY_DEVICE_MEMORY; on_device() adds IVY_ON_DEVICE.
  Communicator on_stream(void* stream, std::uint64_t flags = 0) const {
    Communicator other(comm_, how_);
    other.how_.stream = stream;
    other.how_.flags = flags;
    return other;
  }

  // Declares that all buffers are memory of `device`, which saves queries to the driver.
  Communicator on_device(int device, void* stream, std::uint64_t flags = 0) const {
    Communicator other = on_stream(stream, flags | IVY_ON_DEVICE);
    other.how_.device = device;
    return other;
  }

  void prepare_device(int device = -1) { check(ivy_prepare_device(comm_, device, &how_)); }
  // The buffer belongs to the library until the Work is done.
  template <Buffer B>
  [[nodiscard]] Work start_all_reduce(B& buffer, ivy_op op = IVY_SUM) {
    return start().all_reduce(buffer, op);
  }
};

// A group made from a communicator. Destroy it before the World.
class Group : public Communicator {
 public:
  explicit Group(ivy_comm* comm) : Communicator(comm) {}
  Group(Group&& other) noexcept : Communicator(std::exchange(other.comm_, nullptr)) {}
  Group& operator=(Group&& other) noexcept {
    std::swap(comm_, other.comm_);
    return *this;
  }
  ~Group() {
    if (comm_ != nullptr) ivy_comm_free(comm_);
  }
};

// Makes one group per color; returns none if color < 0. Every rank of `parent` calls it.
inline std::optional<Group> split(const Communicator& parent, int color, int key = 0) {
  ivy_comm* made = nullptr;
  check(ivy_comm_split(parent.handle(), color, key, &made));
  return made != nullptr ? std::optional<Group>(std::in_place, made) : std::nullopt;
}

// Makes a group of these ranks, in this order; returns none on other ranks. Every rank of `parent`
// calls it.
inline std::optional<Group> group(const Communicator& parent, std::span<const std::int32_t> ranks) {
  ivy_comm* made = nullptr;
  check(ivy_comm_group(parent.handle(), ranks.data(), static_cast<std::int32_t>(ranks.size()),
                       &made));
  return made != nullptr ? std::optional<Group>(std::in_place, made) : std::nullopt;
}

// All ranks of the job. The constructor waits for them. The destructor waits as ivy_finalize does
// and ignores its error.
class World : public Communicator {
 public:
  explicit World(const ivy_options* options = nullptr) : Communicator(join(options)) {}
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World() { ivy_finalize(comm_); }

  // After a rank has died, every survivor calls the same one of these two functions. This object
  // then becomes the world of the survivors (shrink) or of all ranks including the restarted ones
  // (grow). Groups made before have ended. A timeout of zero means the world's timeout.
  void shrink(std::chrono::milliseconds timeout = {}) { repair(ivy_comm_shrink, timeout); }
  void grow(std::chrono::milliseconds timeout = {}) { repair(ivy_comm_grow, timeout); }

 private:
  void repair(int (*function)(ivy_comm*, const ivy_call*), std::chrono::milliseconds timeout) {
    ivy_call call = {};
    call.struct_bytes = sizeof call;
    call.timeout_ms = timeout.count();
    check(function(comm_, &call));
  }

  static ivy_comm* join(const ivy_options* options) {
    ivy_comm* world = nullptr;
    check(ivy_init(options, &world));
    return world;
  }
};

}  // namespace ivycomm
