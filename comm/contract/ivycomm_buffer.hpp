// SPDX-License-Identifier: Apache-2.0
// Registered memory (ivycomm.h: ivy_mem_alloc) with an element type, freed by its destructor.
#pragma once

#include <cstddef>
#include <ivycomm.hpp>
#include <memory>
#include <type_traits>

namespace ivycomm {

// An array of `count` zeroed elements that the other ranks of this host can read directly. Can be
// passed wherever a span can: world.all_reduce(buffer). May outlive the world.
template <class T>
class RegisteredBuffer {
 public:
  RegisteredBuffer(ivy_comm* comm, std::size_t count) : count_(count) {
    void* memory = nullptr;
    check(ivy_mem_alloc(comm, count * sizeof(T), &memory));
    memory_.reset(static_cast<T*>(memory));
  }
  T* data() const { return memory_.get(); }
  std::size_t size() const { return count_; }
  T* begin() const { return data(); }
  T* end() const { return data() + count_; }
  T& operator[](std::size_t index) const { return data()[index]; }

 private:
  static_assert(std::is_trivially_copyable_v<T>);
  struct Free {
    void operator()(T* memory) const { ivy_mem_free(memory); }
  };
  std::size_t count_;
  std::unique_ptr<T[], Free> memory_;
};

}  // namespace ivycomm
