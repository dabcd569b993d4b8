// SPDX-License-Identifier: Apache-2.0
// The communicator of a Group, as a capsule that the Group keeps, and the number of calls inside
// it. A call enters the seat before it reads its arguments and leaves it at its end; a seat is
// closed before its communicator is freed. Both happen under one mutex, so a communicator is freed
// either before a call, which is then not usual, or after it.
//
// Thread: any. The mutex guards all mutable state, not the interpreter's lock, which free-threaded
// builds do not have. No Python code runs while the mutex is held.
#pragma once

#include <pthread.h>

#include <atomic>
#include <mutex>
#include <new>

#include "comm/contract/ivycomm.h"
#include "comm/python/extension/python.h"

namespace ivy::python {

inline constexpr const char* kSeatName = "ivycomm.seat";

// The content of a capsule.
struct GroupSeat {
  ivy_comm* comm;
  int rank;
  int size;
  long world;              // The number of the world to which it belongs.
  bool is_closed = false;  // The group was freed.
  Py_ssize_t calls = 0;    // Number of threads inside a call on it.
};

// std::mutex may throw, and would link exceptions and a newer glibc into the extension.
class Mutex {
 public:
  void lock() { pthread_mutex_lock(&mutex_); }
  void unlock() { pthread_mutex_unlock(&mutex_); }

 private:
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
};

struct Seats {
  Mutex mutex;  // Guards all following members, and the mutable ones of each GroupSeat.
  PyObject* world = nullptr;  // The capsule of the world's Group, or null without a world.
  long worlds_ended = 0;
  Py_ssize_t calls = 0;  // The sum over all seats.

  // Returns the seat if calls may use it, otherwise null. Requires the mutex. PyCapsule_IsValid
  // also accepts null.
  GroupSeat* open(PyObject* capsule) const {
    if (PyCapsule_IsValid(capsule, kSeatName) == 0) return nullptr;
    auto* const seat = static_cast<GroupSeat*>(PyCapsule_GetPointer(capsule, kSeatName));
    return !seat->is_closed && seat->world == worlds_ended ? seat : nullptr;
  }
};
inline Seats seats;

inline PyObject* name_of_seat = nullptr;            // "_seat"
inline std::atomic<unsigned long> main_thread = 0;  // Signal handlers run there.

// Counts a call inside its group's seat from construction to destruction. Converts to false if the
// group has no open seat here.
class Seat {
 public:
  // `group` is a Group or its handle; None is the world.
  explicit Seat(PyObject* group) {
    const bool is_world = group == Py_None;
    if (!is_world) capsule_ = without_exception(PyObject_GetAttr(group, name_of_seat));
    const std::lock_guard lock(seats.mutex);
    if (is_world && seats.world != nullptr) capsule_ = new_reference(seats.world);
    seat_ = seats.open(capsule_);
    if (seat_ == nullptr) return;
    ++seat_->calls;
    ++seats.calls;
    comm = seat_->comm;
    rank = seat_->rank;
    size = seat_->size;
  }
  ~Seat() {
    if (seat_ != nullptr) {
      const std::lock_guard lock(seats.mutex);
      --seat_->calls;
      --seats.calls;
    }
    Py_XDECREF(capsule_);
  }
  Seat(const Seat&) = delete;
  Seat& operator=(const Seat&) = delete;

  explicit operator bool() const { return seat_ != nullptr; }

  ivy_comm* comm = nullptr;
  int rank = 0;
  int size = 0;

 private:
  PyObject* capsule_ = nullptr;
  GroupSeat* seat_ = nullptr;
};

// Implements seat(communicator, rank, size), which returns a capsule that is destroyed with its
// Group.
inline PyObject* make_seat(PyObject*, PyObject* arguments) {
  unsigned long long address = 0;
  int rank = 0;
  int size = 0;
  if (PyArg_ParseTuple(arguments, "Kii", &address, &rank, &size) == 0) return nullptr;
  void* const memory = PyMem_Malloc(sizeof(GroupSeat));
  if (memory == nullptr) return PyErr_NoMemory();
  long world = 0;
  {
    const std::lock_guard lock(seats.mutex);
    world = seats.worlds_ended;
  }
  auto* const seat =
      ::new (memory) GroupSeat{reinterpret_cast<ivy_comm*>(address), rank, size, world};
  return PyCapsule_New(seat, kSeatName,
                       [](PyObject* seat_) { PyMem_Free(PyCapsule_GetPointer(seat_, kSeatName)); });
}

// Implements begin_world(seat, main_thread).
inline PyObject* begin_world(PyObject*, PyObject* arguments) {
  PyObject* seat = nullptr;
  unsigned long thread = 0;
  if (PyArg_ParseTuple(arguments, "Ok", &seat, &thread) == 0) return nullptr;
  main_thread = thread;
  new_reference(seat);
  {
    const std::lock_guard lock(seats.mutex);
    std::swap(seats.world, seat);
  }
  Py_XDECREF(seat);
  return new_reference(Py_None);
}

// Implements end_world(): closes every seat, unless calls are in progress; then returns their
// number.
inline PyObject* end_world(PyObject*, PyObject*) {
  Py_ssize_t calls = 0;
  PyObject* ended = nullptr;
  {
    const std::lock_guard lock(seats.mutex);
    calls = seats.calls;
    if (calls == 0) {
      ++seats.worlds_ended;
      std::swap(seats.world, ended);
    }
  }
  Py_XDECREF(ended);
  return PyLong_FromSsize_t(calls);
}

// Implements close(seat): returns False if it was already closed.
inline PyObject* close_seat(PyObject*, PyObject* capsule) {
  const std::lock_guard lock(seats.mutex);
  GroupSeat* const seat = seats.open(capsule);
  if (seat != nullptr) seat->is_closed = true;
  return new_reference(seat != nullptr ? Py_True : Py_False);
}

// Implements inside(seat): returns the number of calls inside it, or inside all seats for None.
inline PyObject* count_inside(PyObject*, PyObject* capsule) {
  Py_ssize_t calls = 0;
  {
    const std::lock_guard lock(seats.mutex);
    if (capsule == Py_None) {
      calls = seats.calls;
    } else if (PyCapsule_IsValid(capsule, kSeatName) != 0) {
      calls = static_cast<GroupSeat*>(PyCapsule_GetPointer(capsule, kSeatName))->calls;
    }
  }
  return PyLong_FromSsize_t(calls);
}

}  // namespace ivy::python
