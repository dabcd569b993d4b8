// SPDX-License-Identifier: Apache-2.0
// Messages between two ranks, in the same way as collective_calls.h. Messages on devices, which may
// be part of an NCCL group, are left to the Python functions.
//
// Thread: any that is attached to the interpreter. A call releases the interpreter's lock while it
// waits.
#pragma once

#include "comm/python/extension/arguments.h"
#include "comm/python/extension/array_view.h"
#include "comm/python/extension/group_handles.h"
#include "comm/python/extension/interrupts.h"
#include "comm/python/extension/library.h"

namespace ivy::python {

inline constexpr int kNoNumber = -2;
static_assert(IVY_ANY_SOURCE != kNoNumber && IVY_ANY_TAG != kNoNumber);

// Returns a sender or a tag, which may be None, or kNoNumber for any other object.
inline int number_or_any(PyObject* given, int any) {
  if (given == Py_None) return any;
  const int number = small_number(given);
  return number < 0 ? kNoNumber : number;
}

// Takes x, dst, tag, group, async_op and timeout.
inline PyObject* send(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 6 || !are_default(given[4], given[5])) return not_implemented();
  const GroupCall handle(given[3]);
  const int to = small_number(given[1]);
  const int tag = small_number(given[2]);
  ArrayView array;
  if (!handle || to < 0 || to >= handle.size || tag < 0) return not_implemented();
  if (!array.take_of_host(given[0], 0)) return not_implemented();
  const auto call = [&](const ivy_call* how) {
    return library.send(handle.comm, array.data(), array.count(), array.dtype(), to, tag, how);
  };
  return call_without_lock(call) ? new_reference(Py_None) : nullptr;
}

// The rank and the tag that a call waits for.
struct Awaited {
  GroupCall handle;
  int from;
  int tag;

  Awaited(PyObject* src, PyObject* given_tag, PyObject* group)
      : handle(group),
        from(number_or_any(src, IVY_ANY_SOURCE)),
        tag(number_or_any(given_tag, IVY_ANY_TAG)) {}
  bool is_usual() const {
    return handle && from != kNoNumber && from < handle.size && tag != kNoNumber;
  }
  // Returns false with an exception set.
  bool receive(const ArrayView& into) const {
    return call_without_lock([&](const ivy_call* how) {
      return library.recv(handle.comm, into.data(), into.count(), into.dtype(), from, tag, nullptr,
                          how);
    });
  }
};

// Takes x, src, tag, group, async_op, timeout and with_message.
inline PyObject* recv_in_place(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 7 || !are_default(given[4], given[5]) || given[6] != Py_False)
    return not_implemented();
  const Awaited awaited(given[1], given[2], given[3]);
  ArrayView array;
  if (!awaited.is_usual() || !array.take_of_host(given[0], kBufferWritable))
    return not_implemented();
  return awaited.receive(array) && mark_changed(given[0]) ? new_reference(given[0]) : nullptr;
}

// Takes like, src, tag, group, out, timeout and with_message.
inline PyObject* recv(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 7 || given[4] != Py_None || !are_default(given[6], given[5]))
    return not_implemented();
  const Awaited awaited(given[1], given[2], given[3]);
  ArrayView like;
  Result result;
  if (!awaited.is_usual() || !like.take_of_host(given[0], 0) || !result.make(empty_like(given[0])))
    return not_implemented();
  return awaited.receive(result.view) ? result.give() : nullptr;
}

inline PyMethodDef message_methods[] = {{"send", fast(send), kMethodFastCall, nullptr},
                                        {"recv", fast(recv), kMethodFastCall, nullptr},
                                        {"recv_", fast(recv_in_place), kMethodFastCall, nullptr},
                                        {nullptr, nullptr, 0, nullptr}};

}  // namespace ivy::python
