// The communicator that a Group stands for, as a capsule that the Group keeps.
//
// Thread: any that holds the interpreter's lock.
#pragma once

#include <new>

#include "comm/contract/ivycomm.h"
#include "comm/python/extension/interrupts.h"
#include "comm/python/extension/python.h"

namespace ivy::python {

struct Seat {
  ivy_comm* comm = nullptr;  // Null once the group was freed.
  int rank = 0;
  int size = 0;
  long world = 0;  // The number of the world that it belongs to.

  explicit operator bool() const { return comm != nullptr; }
};

inline constexpr const char* kSeatName = "ivycomm.seat";
inline long world_number = 0;
inline PyObject* world_seat = nullptr;
inline PyObject* name_of_seat = nullptr;

inline Seat* open_seat(PyObject* capsule) {
  auto* const seat = static_cast<Seat*>(PyCapsule_GetPointer(capsule, kSeatName));
  if (seat == nullptr) PyErr_Clear();
  return seat != nullptr && seat->comm != nullptr && seat->world == world_number ? seat : nullptr;
}

inline Seat copy_of_seat(PyObject* capsule) {
  const Seat* const seat = capsule != nullptr ? open_seat(capsule) : nullptr;
  return seat != nullptr ? *seat : Seat{};
}

// Returns the seat of a call's `group`, false if it has none here. It is a copy, because another
// thread may free the Group while the call has given the interpreter's lock away.
inline Seat seat_of(PyObject* group) {
  if (group == Py_None) return copy_of_seat(world_seat);
  if (name_of_seat == nullptr) name_of_seat = PyUnicode_InternFromString("_seat");
  PyObject* const capsule = PyObject_GetAttr(group, name_of_seat);
  if (capsule == nullptr) {
    PyErr_Clear();
    return Seat{};
  }
  const Seat seat = copy_of_seat(capsule);
  Py_DECREF(capsule);
  return seat;
}

// Implements seat(communicator, rank, size), whose capsule ends with its Group.
inline PyObject* make_seat(PyObject*, PyObject* arguments) {
  unsigned long long address = 0;
  int rank = 0;
  int size = 0;
  if (PyArg_ParseTuple(arguments, "Kii", &address, &rank, &size) == 0) return nullptr;
  void* const memory = PyMem_Malloc(sizeof(Seat));
  if (memory == nullptr) return PyErr_NoMemory();
  auto* const seat =
      ::new (memory) Seat{reinterpret_cast<ivy_comm*>(address), rank, size, world_number};
  return PyCapsule_New(seat, kSeatName,
                       [](PyObject* seat_) { PyMem_Free(PyCapsule_GetPointer(seat_, kSeatName)); });
}

// Implements set_world(seat, main_thread), whose seat is None when the world ends.
inline PyObject* set_world(PyObject*, PyObject* arguments) {
  PyObject* seat = nullptr;
  if (PyArg_ParseTuple(arguments, "Ok", &seat, &main_thread) == 0) return nullptr;
  if (seat == Py_None) ++world_number;
  keep(world_seat, seat == Py_None ? nullptr : new_reference(seat));
  return new_reference(Py_None);
}

inline PyObject* close_seat(PyObject*, PyObject* capsule) {
  if (Seat* const seat = open_seat(capsule)) seat->comm = nullptr;
  return new_reference(Py_None);
}

}  // namespace ivy::python
