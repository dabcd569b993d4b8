// SPDX-License-Identifier: Apache-2.0
// The communicator of a Group, as a capsule that the Group keeps, and the number of calls inside
// it. A call enters the handle before it reads its arguments and leaves it at its end; a handle is
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

inline constexpr const char* kHandleName = "ivycomm.group_handle";

// The content of a capsule.
struct GroupHandle {
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

struct GroupHandles {
  Mutex mutex;  // Guards all following members, and the mutable ones of each GroupHandle.
  PyObject* world = nullptr;  // The capsule of the world's Group, or null without a world.
  long worlds_ended = 0;
  Py_ssize_t calls = 0;  // The sum over all handles.

  // Returns the handle if calls may use it, otherwise null. Requires the mutex. PyCapsule_IsValid
  // also accepts null.
  GroupHandle* open(PyObject* capsule) const {
    if (PyCapsule_IsValid(capsule, kHandleName) == 0) return nullptr;
    auto* const handle = static_cast<GroupHandle*>(PyCapsule_GetPointer(capsule, kHandleName));
    return !handle->is_closed && handle->world == worlds_ended ? handle : nullptr;
  }
};
inline GroupHandles group_handles;

inline PyObject* handle_attribute = nullptr;        // "_group_handle"
inline std::atomic<unsigned long> main_thread = 0;  // Signal handlers run there.

// Counts a call inside its group's handle from construction to destruction. Converts to false if
// the group has no open handle here.
class GroupCall {
 public:
  // `group` is a Group or its handle; None is the world.
  explicit GroupCall(PyObject* group) {
    const bool is_world = group == Py_None;
    if (!is_world) capsule_ = without_exception(PyObject_GetAttr(group, handle_attribute));
    const std::lock_guard lock(group_handles.mutex);
    if (is_world && group_handles.world != nullptr) capsule_ = new_reference(group_handles.world);
    handle_ = group_handles.open(capsule_);
    if (handle_ == nullptr) return;
    ++handle_->calls;
    ++group_handles.calls;
    comm = handle_->comm;
    rank = handle_->rank;
    size = handle_->size;
  }
  ~GroupCall() {
    if (handle_ != nullptr) {
      const std::lock_guard lock(group_handles.mutex);
      --handle_->calls;
      --group_handles.calls;
    }
    Py_XDECREF(capsule_);
  }
  GroupCall(const GroupCall&) = delete;
  GroupCall& operator=(const GroupCall&) = delete;

  explicit operator bool() const { return handle_ != nullptr; }

  ivy_comm* comm = nullptr;
  int rank = 0;
  int size = 0;

 private:
  PyObject* capsule_ = nullptr;
  GroupHandle* handle_ = nullptr;
};

// Implements group_handle(communicator, rank, size), which returns a capsule that is destroyed with
// its Group.
inline PyObject* make_handle(PyObject*, PyObject* arguments) {
  unsigned long long address = 0;
  int rank = 0;
  int size = 0;
  if (PyArg_ParseTuple(arguments, "Kii", &address, &rank, &size) == 0) return nullptr;
  void* const memory = PyMem_Malloc(sizeof(GroupHandle));
  if (memory == nullptr) return PyErr_NoMemory();
  long world = 0;
  {
    const std::lock_guard lock(group_handles.mutex);
    world = group_handles.worlds_ended;
  }
  auto* const handle =
      ::new (memory) GroupHandle{reinterpret_cast<ivy_comm*>(address), rank, size, world};
  return PyCapsule_New(handle, kHandleName, [](PyObject* handle_) {
    PyMem_Free(PyCapsule_GetPointer(handle_, kHandleName));
  });
}

// Implements begin_world(handle, main_thread).
inline PyObject* begin_world(PyObject*, PyObject* arguments) {
  PyObject* handle = nullptr;
  unsigned long thread = 0;
  if (PyArg_ParseTuple(arguments, "Ok", &handle, &thread) == 0) return nullptr;
  main_thread = thread;
  new_reference(handle);
  {
    const std::lock_guard lock(group_handles.mutex);
    std::swap(group_handles.world, handle);
  }
  Py_XDECREF(handle);
  return new_reference(Py_None);
}

// Implements end_world(): closes every handle, unless calls are in progress; then returns their
// number.
inline PyObject* end_world(PyObject*, PyObject*) {
  Py_ssize_t calls = 0;
  PyObject* ended = nullptr;
  {
    const std::lock_guard lock(group_handles.mutex);
    calls = group_handles.calls;
    if (calls == 0) {
      ++group_handles.worlds_ended;
      std::swap(group_handles.world, ended);
    }
  }
  Py_XDECREF(ended);
  return PyLong_FromSsize_t(calls);
}

// Implements close(handle): returns False if it was already closed.
inline PyObject* close_handle(PyObject*, PyObject* capsule) {
  const std::lock_guard lock(group_handles.mutex);
  GroupHandle* const handle = group_handles.open(capsule);
  if (handle != nullptr) handle->is_closed = true;
  return new_reference(handle != nullptr ? Py_True : Py_False);
}

// Implements inside(handle): returns the number of calls inside it, or inside all handles for None.
inline PyObject* count_inside(PyObject*, PyObject* capsule) {
  Py_ssize_t calls = 0;
  {
    const std::lock_guard lock(group_handles.mutex);
    if (capsule == Py_None) {
      calls = group_handles.calls;
    } else if (PyCapsule_IsValid(capsule, kHandleName) != 0) {
      calls = static_cast<GroupHandle*>(PyCapsule_GetPointer(capsule, kHandleName))->calls;
    }
  }
  return PyLong_FromSsize_t(calls);
}

}  // namespace ivy::python
