// Messages between two ranks, in the way of calls.cc.
//
// Thread: any that holds the interpreter's lock, which is given away during every call.
#pragma once

#include "comm/python/extension/arguments.h"
#include "comm/python/extension/array_view.h"
#include "comm/python/extension/interrupts.h"
#include "comm/python/extension/library.h"
#include "comm/python/extension/seats.h"

namespace ivy::python {

inline constexpr int kNoNumber = -2;
static_assert(IVY_ANY_SOURCE != kNoNumber && IVY_ANY_TAG != kNoNumber);

// A sender or a tag, which may be None; kNoNumber: it is another thing than that.
inline int number_or_any(PyObject* given, int any) {
  if (given == Py_None) return any;
  const int number = small_number(given);
  return number < 0 ? kNoNumber : number;
}

// Takes x, dst, tag, group, async_op and timeout.
inline PyObject* send(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 6 || !are_usual(given[4], given[5])) return not_usual();
  const Seat* const seat = seat_of(given[3]);
  const int to = small_number(given[1]);
  const int tag = small_number(given[2]);
  ArrayView array;
  if (seat == nullptr || to < 0 || to >= seat->size || tag < 0) return not_usual();
  if (!array.take_any(given[0], 0)) return not_usual();
  const auto call = [&](const ivy_call* how) {
    return library.send(seat->comm, array.data(), array.count(), array.dtype(), to, tag, how);
  };
  return carry_out(call) ? Py_NewRef(Py_None) : nullptr;
}

// Receives into `into`. False: an exception is set.
inline bool receive(const Seat* seat, const ArrayView& into, int from, int tag) {
  return carry_out([&](const ivy_call* how) {
    return library.recv(seat->comm, into.data(), into.count(), into.dtype(), from, tag, nullptr,
                        how);
  });
}

// Takes x, src, tag, group, async_op, timeout and with_message.
inline PyObject* recv_in_place(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 7 || !are_usual(given[4], given[5]) || given[6] != Py_False) return not_usual();
  const Seat* const seat = seat_of(given[3]);
  const int from = number_or_any(given[1], IVY_ANY_SOURCE);
  const int tag = number_or_any(given[2], IVY_ANY_TAG);
  ArrayView array;
  if (seat == nullptr || from == kNoNumber || from >= seat->size || tag == kNoNumber)
    return not_usual();
  if (!array.take_any(given[0], PyBUF_WRITABLE)) return not_usual();
  return receive(seat, array, from, tag) && tell_changed(given[0]) ? Py_NewRef(given[0]) : nullptr;
}

// Takes like, src, tag, group, out, timeout and with_message.
inline PyObject* recv(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 7 || given[4] != Py_None || given[5] != Py_None || given[6] != Py_False) {
    return not_usual();
  }
  const Seat* const seat = seat_of(given[3]);
  const int from = number_or_any(given[1], IVY_ANY_SOURCE);
  const int tag = number_or_any(given[2], IVY_ANY_TAG);
  ArrayView like;
  if (seat == nullptr || from == kNoNumber || from >= seat->size || tag == kNoNumber)
    return not_usual();
  if (!like.take_any(given[0], 0)) return not_usual();
  Result result;
  if (!result.make(empty_like(given[0]))) return not_usual();
  return receive(seat, result.view, from, tag) ? result.give() : nullptr;
}

}  // namespace ivy::python
